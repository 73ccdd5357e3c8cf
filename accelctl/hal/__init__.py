"""The only door to the operating system: files, links, devices, sockets and processes are reached from here and nowhere
else.
"""
