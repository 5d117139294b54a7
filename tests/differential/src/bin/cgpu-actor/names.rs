//! Entry points with several names: older versions, and variants for per-thread default streams.

use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use cgpu_differential::actor::NAMES;
use cgpu_differential::random::Random;

/// The first name is the one in the actor's code; the others take the same arguments.
const SAME: [&[&CStr]; 12] = [
    &[c"cuCtxDestroy_v2", c"cuCtxDestroy"],
    &[c"cuDevicePrimaryCtxRelease_v2", c"cuDevicePrimaryCtxRelease"],
    &[c"cuDevicePrimaryCtxReset_v2", c"cuDevicePrimaryCtxReset"],
    &[c"cuStreamDestroy_v2", c"cuStreamDestroy"],
    &[c"cuMemAllocAsync", c"cuMemAllocAsync_ptsz"],
    &[c"cuMemAllocFromPoolAsync", c"cuMemAllocFromPoolAsync_ptsz"],
    &[c"cuMemFreeAsync", c"cuMemFreeAsync_ptsz"],
    &[c"cuStreamSynchronize", c"cuStreamSynchronize_ptsz"],
    &[c"cuStreamWaitEvent", c"cuStreamWaitEvent_ptsz"],
    &[c"cuEventRecord", c"cuEventRecord_ptsz"],
    &[c"cuGraphLaunch", c"cuGraphLaunch_ptsz"],
    &[c"cuIpcOpenMemHandle_v2", c"cuIpcOpenMemHandle"],
];

/// Draws among the names if the harness gave a seed.
pub(crate) struct Names(Option<Mutex<Random>>);

impl Names {
    pub(crate) fn from_environment() -> Self {
        let seed = std::env::var(NAMES).ok().and_then(|seed| seed.parse().ok());
        Self(seed.map(|seed| Mutex::new(Random::of(seed))))
    }

    /// Returns whether names are drawn.
    pub(crate) fn are_drawn(&self) -> bool {
        self.0.is_some()
    }

    /// Draws one of so many variants; the first one if names are not drawn.
    pub(crate) fn variant(&self, variants: u64) -> u64 {
        let draw = |random: &Mutex<Random>| {
            random.lock().unwrap_or_else(PoisonError::into_inner).below(variants)
        };
        self.0.as_ref().map_or(0, draw)
    }

    /// Draws a name of the function.
    pub(crate) fn for_name<'a>(&self, name: &'a CStr) -> &'a CStr {
        let same =
            SAME.iter().filter(|_| self.are_drawn()).find(|same| same.first() == Some(&name));
        let drawn = same.and_then(|same| {
            let variant = usize::try_from(self.variant(same.len() as u64)).ok()?;
            same.get(variant).copied()
        });
        drawn.unwrap_or(name)
    }
}
