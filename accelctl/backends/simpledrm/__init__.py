"""Firmware framebuffer (simpledrm, efidrm, vesadrm): probe reads its chip.toml without importing this package."""
