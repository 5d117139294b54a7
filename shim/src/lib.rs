//! libcgpu.so: the preload shim, entry points and routing over cgpu-tenant
