//! The facade for atomics. Every atomic of the project comes from here, so that a model run (`--cfg
//! loom`) can substitute loom's and explore interleavings and the values that a weak memory model
//! allows.
//!
//! A test (`tests/facade.rs`) forbids the standard library's names elsewhere. Loom's types have
//! another size, so code that checks offsets or maps files is `cfg(not(loom))`. Code that decides
//! takes borrowed atomics and is modelled unchanged.

pub use core::sync::atomic::{Ordering, compiler_fence};

#[cfg(not(loom))]
pub use core::{
    hint::spin_loop,
    sync::atomic::{
        AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64,
        AtomicUsize, fence,
    },
};

#[cfg(loom)]
mod model;
#[cfg(loom)]
pub use loom::{hint::spin_loop, sync::atomic::fence};
#[cfg(loom)]
pub use model::{AtomicBool, AtomicU32, AtomicU64};
