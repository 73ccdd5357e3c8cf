"""From a request to instructions, in six stages.

    validate     the descriptions: types, sizes, strides, attributes; then where each operand lies
    route        the op's family, and what the chip has for it
    lower        ways to put it: as it is, dense, in another layout, in fp32
    infer        what comes out; the first way that a kernel takes, and its grid and block
    instantiate  the bytes, but for the addresses; kept, and found again by the description of the request
    submit       the session's queue

Everything before `submit` knows no address: a plan serves every request with the same op, attributes, shapes, strides
and types. What is found in the cache has only its addresses put in.
"""
