"""The data channel: tensors in shared memory, beside the control messages on gRPC.

    ring.py      slots with sequence numbers in shared memory: one writer, one reader, nobody trusted
    messages.py  what the two sides say to each other on the side socket
    link.py      the side socket as an end of a channel: messages, and "look into the ring again"
    transfer.py  Sender and Receiver: tensors in chunks with checksums, through a ring
    door.py      the service's side: tokens, the listening socket, a thread per channel
    tunnel.py    the client's side

Who trusts whom: nobody. The pages are writable for both sides at all times, so nothing in them is looked at twice: a
header is copied, then checked; a payload is copied to private memory, then checksummed there, and only those checked
bytes go on to the tensor. A peer that lies spoils its own tensors and nothing else.
"""
