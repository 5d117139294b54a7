//! The table of green contexts.

use cgpu_shm::spin::Spin;

use crate::contexts::table::Context;
use crate::handles::{ContextId, GreenId};

/// The green contexts of a process, a handful: each has some of a GPU's multiprocessors.
#[derive(Debug)]
pub(crate) struct GreenTable(pub(super) Spin<Vec<Green>>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Green {
    pub(super) id: GreenId,
    pub(super) whole: Context,
    /// Its handle as a context, once the program has requested it.
    pub(super) handle: Option<ContextId>,
}

impl GreenTable {
    pub(crate) fn new() -> Self {
        Self(Spin::new(Vec::new()))
    }
}
