//! Counted reasons: every refusal, bypass and unusual case has a name here and a counter in the
//! process's slot.
//!
//! A reason's number is its index in `cgpu_slot.counter`, by which the shim counts and all programs
//! read. So a reason never moves, its index is never reused, and new reasons go to the end.

use std::borrow::Cow;

use crate::layout::COUNTERS;

/// What a reason means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The call went to the driver without being accounted or gated.
    Bypass,
    /// The call was refused.
    Refusal,
    /// The call was done, and something about it was unusual.
    Notice,
}

/// One row per reason: variant, kind, the name in `cgpu smi --json` and the metrics, the message.
macro_rules! reasons {
    ($($variant:ident, $kind:ident, $name:literal, $message:literal;)*) => {
        /// A counted reason. See the module's documentation; each variant's text is its message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $message] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the counters.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns what it means for the caller.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self { $(Self::$variant => Kind::$kind,)* }
            }

            /// Returns the reason of this name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.name() == name)
            }

            /// Returns the name used in data: lower case, words joined by `_`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Returns the message for users.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self { $(Self::$variant => $message,)* }
            }
        }
    };
}

reasons! {
    // The shim does nothing at all.
    Disabled, Bypass, "disabled", "CGPU_DISABLE is set: every call goes to the driver.";
    NoLimit, Bypass, "no_limit", "No limit is set: every call goes to the driver.";
    NoGpus, Bypass, "no_gpus", "No GPU is visible to this process: there is nothing to limit.";
    // Refused memory.
    OverLimit, Refusal, "over_limit", "An allocation would have gone over the container's limit.";
    ContextOverLimit, Refusal, "context_over_limit",
        "A context of the expected size would have gone over the container's limit.";
    ManagedRefused, Refusal, "managed_refused",
        "Managed memory was refused: it is not bound to the GPU's memory.";
    Unsupported, Refusal, "unsupported",
        "An allocating function that cgpu does not account for was refused.";
    TooLarge, Refusal, "too_large", "An allocation of more than 1 TiB was refused.";
    CodeOverLimit, Refusal, "code_over_limit",
        "A module or a larger heap, stack or printf buffer would have gone over the limit.";
    DriverRefused, Refusal, "driver_refused",
        "The driver refused an allocation that the limit allows.";
    // Unusual memory calls.
    WaitedForDraining, Notice, "waited_for_draining",
        "An allocation waited for the memory of a process that had just exited.";
    ImplicitOverLimit, Notice, "implicit_over_limit",
        "Memory that cannot be refused (a context, a module) took the container over its limit.";
    UnknownFree, Bypass, "unknown_free",
        "An address that is not charged was freed: the call went to the driver.";
    FreeRefused, Notice, "free_refused", "The driver refused a free: the memory stays charged.";
    AddressReplaced, Notice, "address_replaced",
        "The driver returned an address that was still charged: the old entry was dropped.";
    StaleContext, Notice, "stale_context",
        "An allocation returned after its context was destroyed: it was freed with the context.";
    Unrecorded, Notice, "unrecorded",
        "No host memory to record an allocation: it stays charged until the process exits.";
    UnknownContext, Notice, "unknown_context",
        "A call used a context whose creation was not seen: it is tracked from now on.";
    TooManyContexts, Notice, "too_many_contexts",
        "More contexts than can be tracked: their memory is charged to the GPU as a whole.";
    // Calls that go to the driver.
    NativeGpu, Bypass, "native_gpu", "The GPU is not sliced: the call goes to the driver.";
    BeforeInit, Bypass, "before_init", "A call before cuInit: the driver answers it.";
    Reentered, Bypass, "reentered",
        "A call from inside the shim's own work: it goes to the driver.";
    AfterFork, Bypass, "after_fork",
        "A call in a forked child that has not initialized the driver: the driver answers it.";
    MissingFunction, Refusal, "missing_function",
        "The driver lacks the function: the call returned NOT_SUPPORTED.";
    UnexportedPassed, Bypass, "unexported_passed",
        "cuGetProcAddress returned a pointer that the driver does not export: passed, because the \
         function is harmless.";
    UnexportedRefused, Refusal, "unexported_refused",
        "cuGetProcAddress returned a pointer that the driver does not export: refused, because \
         the function allocates.";
    DeepBindCleared, Notice, "deep_bind_cleared",
        "RTLD_DEEPBIND was cleared from a dlopen, because it would have bypassed the shim.";
    NamespaceRefused, Refusal, "namespace_refused",
        "dlmopen was refused: it would have loaded a second driver into another namespace.";
    Panicked, Notice, "panicked",
        "A panic inside the shim was caught: the call returned an unknown error.";
    ForeignContext, Bypass, "foreign_context",
        "A call had no current context, or one of a GPU that the shim does not know: passed.";
    Imported, Notice, "imported",
        "Memory of another process or interface was imported: it is not charged here.";
    GrownUnseen, Bypass, "grown_unseen",
        "A call may have allocated memory that only the GPU's own counters show: passed.";
    LockHeld, Refusal, "lock_held", "A charge timed out: a stopped process holds the GPU's lock.";
    // Unusual launches.
    Capturing, Bypass, "capturing",
        "A launch into a stream that is, or may be, captured: passed, because nothing runs yet.";
    OtherGpu, Bypass, "other_gpu",
        "A launch out of turn was passed: work of the process on another GPU may wait for it.";
    BoundPassed, Bypass, "bound_passed",
        "A launch exceeded the limit of work in flight: waiting longer could have been a deadlock.";
    StaleMonitor, Bypass, "stale_monitor",
        "A waiting launch was passed: the monitor's heartbeat has been missing for a second.";
    Unmarked, Notice, "unmarked",
        "Launches were measured by their estimates, because no event marker followed them.";
    MarkerFailed, Notice, "marker_failed",
        "The driver refused an event marker: for a while launches are measured by their estimates.";
    // Memory other than linear.
    ExportedKept, Notice, "exported_kept",
        "Exported memory was freed here: it stays charged until the process exits, because others \
         may hold it.";
    ArrayBounded, Notice, "array_bounded",
        "The driver does not report an array's size: an upper bound was charged.";
    // Memory pools.
    PoolGrew, Notice, "pool_grew",
        "A pool grew past the limit, by more than was charged in advance: the new allocation was \
         freed.";
    PoolOutlived, Notice, "pool_outlived",
        "A pool was destroyed while it held memory: it stays charged until it holds none.";
    PoolUnread, Notice, "pool_unread",
        "The driver did not report a pool's size: what was charged in advance stays charged.";
    GraphGrew, Notice, "graph_grew",
        "A graph's launch took more memory than was charged in advance, past the limit: it is \
         charged, and new allocations are refused.";
    // The GPU's clock.
    LengthClamped, Notice, "length_clamped",
        "The GPU's clock gave an impossible duration: the estimate was charged.";
    ClockReanchored, Notice, "clock_reanchored",
        "The GPU's clock was compared with the host's again: after a pause of 8 s, or because it \
         was set.";
    Tampered, Notice, "tampered",
        "The ledger has less than the process has charged: something other than cgpu has written \
         to the container's file `use`.";
}

const _: () = assert!(Reason::ALL.len() <= COUNTERS);

/// Returns the name and the count of each reason that happened. A reason that this version does not
/// know is named by its number.
pub fn counted(counters: &[u32; COUNTERS]) -> impl Iterator<Item = (Cow<'static, str>, u32)> + '_ {
    let named = |index: usize| Reason::ALL.get(index).map(|reason| Cow::Borrowed(reason.name()));
    let happened = counters.iter().enumerate().filter(|(_, count)| **count > 0);
    happened.map(move |(index, count)| {
        (named(index).unwrap_or_else(|| index.to_string().into()), *count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_distinct_and_valid_in_data() {
        let names: HashSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, index);
            assert_eq!(Reason::named(reason.name()), Some(*reason));
            assert!(
                reason.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{reason:?}"
            );
            assert!(reason.message().ends_with('.'), "{reason:?}");
        }
    }

    #[test]
    fn counted_reasons_have_names() {
        let mut counters = [0; COUNTERS];
        counters[Reason::OverLimit as usize] = 7;
        counters[COUNTERS - 1] = 2;
        let counted: Vec<_> = counted(&counters).collect();
        // A later version may count what this one has no name for.
        let last = Reason::ALL.get(COUNTERS - 1).map(|reason| reason.name().to_owned());
        let last = last.unwrap_or_else(|| (COUNTERS - 1).to_string());
        assert_eq!(counted, [("over_limit".into(), 7), (last.into(), 2)]);
    }
}
