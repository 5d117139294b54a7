//! Pools with a maximum size, in a locality domain, or set as a GPU's current pool.

use serde::{Deserialize, Serialize};

use super::Place;

/// A command for such a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the type's comment describes the fields")]
pub enum OfPool {
    /// `cuMemPoolCreate` of an exportable pool of at most `most` bytes; 0: no maximum.
    Make { pool: u32, most: u64, place: Place },
    /// `cuMemPoolDestroy` of a pool that was never exported. Memory in use stays allocated.
    /// `place`: its location, which stops using the pool.
    End { pool: u32, place: Place },
    /// `cuDeviceSetMemPool`, or with a place `cuMemSetMemPool`; then the getter.
    Choose { pool: u32, by: Option<Place> },
    /// Whether `cuDeviceGetMemPool` returns this pool.
    IsChosen { pool: u32 },
}
