"""Reads the symbols that a library exports, from its dynamic symbol table."""

import struct

DYNSYM = 11
# Size of an entry, in a 64-bit file.
SECTION, SYMBOL = 64, 24


def exported(path):
    """Returns the names of all defined dynamic symbols of a 64-bit little-endian ELF file."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
    table, count = struct.unpack_from("<Q", data, 0x28)[0], struct.unpack_from("<H", data, 0x3C)[0]
    # Of each section: name, type, flags, address, offset, size, link.
    sections = [struct.unpack_from("<IIQQQQI", data, table + SECTION * n) for n in range(count)]
    names = set()
    for _, kind, _, _, offset, size, link in sections:
        if kind != DYNSYM:
            continue
        strings = sections[link][4]
        for at in range(offset, offset + size, SYMBOL):
            name, _, _, section = struct.unpack_from("<IBBH", data, at)
            # Section 0: the library needs the symbol and does not define it.
            if section:
                start = strings + name
                names.add(data[start : data.index(b"\0", start)].decode())
    return names
