//! The facade for atomics: every atomic of the project comes from here, so that a model run (`--cfg loom`) can put loom's in
//! their place and try the interleavings, and the values that a weak memory model allows.
//!
//! A test (`tests/facade.rs`) forbids the standard library's own names elsewhere. Loom's types have another size, so whatever
//! checks offsets or maps files is `cfg(not(loom))`; whatever decides takes borrowed atomics and is modelled as it stands.

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
