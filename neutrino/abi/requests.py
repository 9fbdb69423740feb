"""What hooked processes and the listener that makes twins say to each other."""

from __future__ import annotations

from neutrino.abi.structures import Member, Struct

REQUEST_MAGIC = b"NTASK\0\0\0"
REPLY_MAGIC = b"NTREPLY\0"
OF_KERNEL = b"neutrino-kernel "
"""Before an image: twins of one kernel of it alone are asked for. The kernel's mangled name and a line feed follow,
then the image. ``image/kernel_image.c`` writes it."""
OF_KEPT_KERNEL = b"neutrino-kept-kernel "
"""As ``OF_KERNEL``, but the image's SHA-256 follows in its place: the image is a file in the folder of the listener's
socket, whose name is that in hex."""

REQUEST = Struct(
    "request",
    (
        Member("magic", "char", 8),
        Member(
            "kind",
            "u32",
            note="1: this process has begun a trace, its path follows; 2: make twins, the image does; 4: as 2, but "
            "nobody reads the answer yet: it has no entry",
        ),
        Member("pid", "u32"),
        Member("key", "u8", 32, note="cache key of the entry asked for"),
        Member("arch", "char", 16, note="of the device, such as sm_90"),
        Member("driver_version", "u32", note="as cuDriverGetVersion gives it"),
        Member("reserved", "u32"),
        Member("size", "u64", note="bytes that follow"),
    ),
    "What a hooked process sends to the listener.",
)

REPLY = Struct(
    "reply",
    (
        Member("magic", "char", 8),
        Member(
            "status",
            "u32",
            note="0: the entry follows; 1: a text: why there is none; 2: to a request of kind 4: it "
            "may be in the cache, ask by one of kind 2 if not",
        ),
        Member("reserved", "u32"),
        Member("size", "u64", note="bytes that follow"),
    ),
    "What the listener answers to requests of the kinds 2 and 4.",
)
