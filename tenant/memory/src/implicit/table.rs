//! What is charged for which object, and what is known of libraries.
//!
//! Nothing in here calls the driver or the ledger.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use cgpu_shm::spin::Spin;
use cgpu_shm::units::{Bytes, DeviceIndex};

use crate::contexts::table::Context;

/// The object that implicit memory came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A module, by its handle (`CUmodule`).
    Module(usize),
    /// A library, by its handle (`CUlibrary`).
    Library(usize),
    /// A limit of the context (`CUlimit`).
    Limit(u32),
    /// A green context, by its handle (`CUgreenCtx`).
    Green(usize),
    /// Code that stays with its context.
    Code,
}

/// What is charged for objects that can be unloaded, and what came with their contexts.
#[derive(Debug)]
pub(crate) struct ImplicitTable {
    shares: Spin<Vec<Share>>,
    came: Spin<Vec<Share>>,
    pub(super) libraries: Spin<Libraries>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    cause: Cause,
    pub(super) context: Context,
    pub(super) bytes: Bytes,
}

impl ImplicitTable {
    pub(crate) fn new() -> Self {
        Self {
            shares: Spin::new(Vec::new()),
            came: Spin::new(Vec::new()),
            libraries: Spin::new(Libraries::default()),
        }
    }

    /// Returns how much of a cause came with a context: `now` at the first call. Without host
    /// memory to record it, always `now`.
    pub(super) fn came_with(&self, context: Context, cause: Cause, now: Bytes) -> Bytes {
        let mut came = self.came.lock();
        if let Some(share) =
            came.iter().find(|share| share.cause == cause && share.context == context)
        {
            return share.bytes;
        }
        if came.try_reserve(1).is_ok() {
            came.push(Share { cause, context, bytes: now });
        }
        now
    }

    /// Adds to an object's share. Without host memory for it, the bytes stay with the context.
    pub(super) fn add(&self, cause: Cause, context: Context, bytes: Bytes) {
        if cause == Cause::Code || bytes == Bytes::ZERO {
            return;
        }
        let mut shares = self.shares.lock();
        if let Some(share) =
            shares.iter_mut().find(|share| share.cause == cause && share.context == context)
        {
            share.bytes = share.bytes + bytes;
        } else if shares.try_reserve(1).is_ok() {
            shares.push(Share { cause, context, bytes });
        }
    }

    /// Removes and returns an object's shares: of `context` only, if there is one, and at most
    /// `most` of each.
    pub(super) fn take(&self, cause: Cause, context: Option<Context>, most: Bytes) -> Vec<Share> {
        let mut taken = Vec::new();
        self.shares.lock().retain_mut(|share| {
            if share.cause != cause || context.is_some_and(|context| context != share.context) {
                return true;
            }
            let bytes = share.bytes.min(most);
            if taken.try_reserve(1).is_ok() {
                taken.push(Share { bytes, ..*share });
                share.bytes = share.bytes - bytes;
            }
            share.bytes > Bytes::ZERO
        });
        taken
    }

    /// Returns the GPUs on which an object has a share, a bit each.
    pub(super) fn gpus(&self, cause: Cause) -> u32 {
        let shares = self.shares.lock();
        let its = shares.iter().filter(|share| share.cause == cause);
        its.fold(0, |gpus, share| gpus | bit(share.context.gpu()))
    }

    /// Removes what belongs to a context that has ended.
    pub(crate) fn forget(&self, context: Context) {
        self.shares.lock().retain(|share| share.context != context);
        self.came.lock().retain(|share| share.context != context);
        self.libraries.lock().loaded.retain(|(_, other), _| *other != context);
    }
}

/// The keys are the driver's handles, which are not chosen to collide. Random seeds would need a
/// symbol (`getrandom`) that older C libraries lack.
type Unseeded = BuildHasherDefault<DefaultHasher>;

/// What is known of libraries, kernels and functions, by the driver's handles. Without host memory
/// to record something, a library's size is only measured, and a look-up is measured again.
#[derive(Debug, Default)]
pub(super) struct Libraries {
    /// By library, the size of its variables in a context according to its image.
    variables: Vec<(usize, Bytes)>,
    /// What is loaded in which context, and the library that it is from, if that is known.
    /// Frameworks look up thousands of functions.
    loaded: HashMap<(usize, Context), Option<usize>, Unseeded>,
}

impl Libraries {
    pub(super) fn is_loaded(&self, what: usize, context: Context) -> bool {
        self.loaded.contains_key(&(what, context))
    }

    pub(super) fn add(&mut self, what: usize, context: Context, library: Option<usize>) {
        if self.loaded.try_reserve(1).is_ok() {
            self.loaded.entry((what, context)).or_insert(library);
        }
    }

    /// Removes an unloaded library and what is from it, and what is of unknown origin: the handles
    /// may be reused.
    pub(super) fn unload(&mut self, library: usize) {
        self.variables.retain(|(handle, _)| *handle != library);
        self.loaded.retain(|_, its| its.is_some_and(|its| its != library));
    }

    /// Removes functions of unknown origin, because a module was unloaded: the handles may be
    /// reused.
    pub(super) fn forget_functions(&mut self) {
        self.loaded.retain(|_, library| library.is_some());
    }

    /// Adds a loaded library; it is in `context` already, if there is one.
    pub(super) fn load(&mut self, library: usize, variables: Bytes, context: Option<Context>) {
        if let Some(context) = context {
            self.add(library, context, Some(library));
        }
        if variables > Bytes::ZERO && self.variables.try_reserve(1).is_ok() {
            self.variables.push((library, variables));
        }
    }

    pub(super) fn variables(&self, library: usize) -> Bytes {
        let of_it = self.variables.iter().find(|(handle, _)| *handle == library);
        of_it.map_or(Bytes::ZERO, |(_, bytes)| *bytes)
    }
}

fn bit(gpu: DeviceIndex) -> u32 {
    1 << gpu.get()
}

pub(super) fn gpus_in(bits: u32) -> impl Iterator<Item = DeviceIndex> {
    DeviceIndex::all().filter(move |gpu| bits & bit(*gpu) != 0)
}
