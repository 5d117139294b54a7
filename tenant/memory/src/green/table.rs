//! The entries of the table of green contexts.

use crate::contexts::table::Context;
use crate::handles::{ContextId, GreenId};

/// A green context. There are few: each has some of a GPU's multiprocessors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Green {
    pub(super) id: GreenId,
    pub(super) whole: Context,
    /// Its handle as a context, once the program has requested it.
    pub(super) handle: Option<ContextId>,
}
