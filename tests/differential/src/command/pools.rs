//! Pools that may hold no more than so much, lie in a part of a GPU, or are what a GPU allocates from.

use serde::{Deserialize, Serialize};

use super::Place;

/// What is done with such pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are said above")]
pub enum OfPool {
    /// `cuMemPoolCreate` of a kind that can be exported, which holds no more than `most`; 0: as much as the GPU has.
    Make { pool: u32, most: u64, place: Place },
    /// `cuMemPoolDestroy` of one that was never sent to anybody, with what is in use of it: that lives on. `place`: where it lay, which
    /// allocates from it no more.
    End { pool: u32, place: Place },
    /// `cuDeviceSetMemPool`, or by a place `cuMemSetMemPool`; then what the getter says.
    Choose { pool: u32, by: Option<Place> },
    /// Whether `cuDeviceGetMemPool` says that the first GPU allocates from it.
    IsChosen { pool: u32 },
}
