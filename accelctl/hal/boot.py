"""Which start of the machine this is."""

BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""Another one after each start (random(4)): what was loaded, and what hung, is not the same then."""
