"""The protocol: umd.proto, and what protoc makes of it (`python -m tools.protoc`). Nothing here is written by hand."""
