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
    ($($variant:ident, $kind:ident, $name:literal, $sentence:literal;)*) => {
        /// A counted reason. See the module's documentation; each variant's text is its sentence.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $sentence] $variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the counters.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// What it means.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self { $(Self::$variant => Kind::$kind,)* }
            }

            /// The reason of this name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.name() == name)
            }

            /// The name in data: lower case, words joined by `_`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The sentence for people.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self { $(Self::$variant => $sentence,)* }
            }
        }
    };
}

reasons! {
    // Why the shim stays out of the way altogether.
    Disabled, Bypass, "disabled", "CGPU_DISABLE is set: every call goes to the driver.";
    NoLimit, Bypass, "no_limit", "No limit is set: every call goes to the driver.";
    NoGpus, Bypass, "no_gpus", "No GPU is visible to this process: there is nothing to limit.";
    // Memory that was refused.
    OverLimit, Refusal, "over_limit", "An allocation would have gone over the container's limit.";
    ContextOverLimit, Refusal, "context_over_limit", "A context, by its learned size, would have gone over the container's limit.";
    ManagedRefused, Refusal, "managed_refused", "Managed memory is refused on every route, because it is not bound to the GPU's memory.";
    Unsupported, Refusal, "unsupported", "An allocating entry point that is not accounted yet was refused.";
    TooLarge, Refusal, "too_large", "An allocation of more than 1 TiB, which no GPU has, was refused.";
    CodeOverLimit, Refusal, "code_over_limit", "A module, or a larger heap, stack or printf buffer, would have gone over the container's limit.";
    DriverRefused, Refusal, "driver_refused", "The driver refused an allocation that the limit allows.";
    // Memory whose course was unusual.
    WaitedForDraining, Notice, "waited_for_draining", "An allocation waited for the memory of a process that had just ended.";
    ImplicitOverLimit, Notice, "implicit_over_limit", "Memory that cannot be refused (a context, a module) took the container over its limit.";
    UnknownFree, Bypass, "unknown_free", "An address that is not on the books was freed: passed on.";
    FreeRefused, Notice, "free_refused", "The driver refused a free: the memory stays on the books.";
    AddressReplaced, Notice, "address_replaced", "The driver gave out an address that was still on the books: the old entry was dropped.";
    StaleContext, Notice, "stale_context", "An allocation ended after its context was destroyed: it went with the context.";
    Unrecorded, Notice, "unrecorded", "No host memory to record an allocation: it stays charged until the process ends.";
    UnknownContext, Notice, "unknown_context", "A call came in a context whose creation was not seen: it was taken up then.";
    TooManyContexts, Notice, "too_many_contexts", "More contexts than can be told apart: their memory is kept with the GPU's.";
    // Calls that pass.
    NativeGpu, Bypass, "native_gpu", "The GPU is not sliced: the call goes to the driver.";
    BeforeInit, Bypass, "before_init", "A call before cuInit: the driver answers it.";
    Reentered, Bypass, "reentered", "A call from inside the shim's own work: it goes to the driver.";
    AfterFork, Bypass, "after_fork", "A call in a forked child that has not initialised the driver: the driver answers it.";
    MissingFunction, Refusal, "missing_function", "The driver lacks the function: answered NOT_SUPPORTED.";
    UnexportedPassed, Bypass, "unexported_passed", "cuGetProcAddress gave a pointer that the driver does not export: passed, its role is harmless.";
    UnexportedRefused, Refusal, "unexported_refused", "cuGetProcAddress gave a pointer that the driver does not export: refused, its role allocates.";
    DeepBindCleared, Notice, "deep_bind_cleared", "RTLD_DEEPBIND was cleared from a dlopen, which would have gone round the shim.";
    NamespaceRefused, Refusal, "namespace_refused", "dlmopen would have brought a second driver into another namespace: refused.";
    Panicked, Notice, "panicked", "A defect of the shim was caught at its border: the call was answered as unknown error.";
    ForeignContext, Bypass, "foreign_context", "A call came with no current context or one of a GPU that the shim does not know: passed.";
    Imported, Notice, "imported", "Memory of another process or interface was taken in: whoever made it pays.";
    GrownUnseen, Bypass, "grown_unseen", "A call that may take memory which only the GPU's own books show: passed.";
    LockHeld, Refusal, "lock_held", "A charge gave up: a process that is stopped holds the GPU's lock.";
    // Launches whose course was unusual.
    Capturing, Bypass, "capturing", "A launch into a stream that is being captured, or may be: passed, because nothing is executed.";
    OtherGpu, Bypass, "other_gpu", "A launch out of turn was let through: it may be awaited by the process's work on another GPU.";
    BoundPassed, Bypass, "bound_passed", "A launch went beyond the bound of work in flight: waiting longer might have been waiting for itself.";
    StaleMonitor, Bypass, "stale_monitor", "A held launch was let through: the monitor's heart has not beaten for a second.";
    Unmarked, Notice, "unmarked", "Launches were settled by their estimate: no marker followed them.";
    MarkerFailed, Notice, "marker_failed", "The driver refused a marker: for a while launches are settled by their estimates.";
    // Memory of other kinds than linear.
    ExportedKept, Notice, "exported_kept", "Exported memory was let go here: it stays charged until the process ends, because others may hold it.";
    ArrayBounded, Notice, "array_bounded", "The driver does not say what an array takes: it was charged by an upper bound.";
    // Memory pools.
    PoolGrew, Notice, "pool_grew", "A pool grew past the limit, by more than was charged in advance: what it grew for was freed again.";
    PoolOutlived, Notice, "pool_outlived", "A pool was destroyed while it held memory: it stays charged, and ends when it holds none.";
    PoolUnread, Notice, "pool_unread", "The driver did not say what a pool holds: what was charged in advance stays charged.";
    GraphGrew, Notice, "graph_grew", "A graph's launch took more than it was charged in advance, past the limit: shown, and in the way of new allocations.";
    // The GPU's clock.
    LengthClamped, Notice, "length_clamped", "The GPU's clock gave a length of work that cannot be: its estimate was charged.";
    ClockReanchored, Notice, "clock_reanchored", "The GPU's clock was compared with the host's anew: after a pause of 8 s, or because it was set.";
}

const _: () = assert!(Reason::ALL.len() <= COUNTERS);

/// Returns the name and the count of each reason that happened. A reason that this version does not
/// know is named by its number.
pub fn counted(counters: &[u32; COUNTERS]) -> impl Iterator<Item = (Cow<'static, str>, u32)> + '_ {
    let named = |place: usize| Reason::ALL.get(place).map(|reason| Cow::Borrowed(reason.name()));
    let happened = counters.iter().enumerate().filter(|(_, count)| **count > 0);
    happened.map(move |(place, count)| {
        (named(place).unwrap_or_else(|| place.to_string().into()), *count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_distinct_and_fit_for_data() {
        let names: HashSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Reason::ALL.len());
        for (place, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, place);
            assert_eq!(Reason::named(reason.name()), Some(*reason));
            assert!(
                reason.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'),
                "{reason:?}"
            );
            assert!(reason.sentence().ends_with('.'), "{reason:?}");
        }
    }

    #[test]
    fn what_was_counted_has_a_name() {
        let mut counters = [0; COUNTERS];
        counters[Reason::OverLimit as usize] = 7;
        counters[COUNTERS - 1] = 2;
        let counted: Vec<_> = counted(&counters).collect();
        assert_eq!(counted, [("over_limit".into(), 7), ((COUNTERS - 1).to_string().into(), 2)]);
    }
}
