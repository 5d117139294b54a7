//! Loom's atomics, each operation behind a turnstile.
//!
//! Loom decides where to try another order by the *last* access to an atomic alone. When a thread
//! has just loaded a word itself, that load hides the other thread's earlier one, and loom never
//! tries the order in which its next store comes first (loom 0.7.2, `rt/execution.rs`, `schedule`).
//! Some models here ran a single time. The turnstile is one atomic that every operation touches
//! first with a Relaxed read-modify-write. Any two operations of two threads then conflict, and
//! loom tries every order within the preemption bound. Being Relaxed it orders nothing: stale loads
//! stay possible.
use loom::sync::atomic::AtomicUsize;

use super::Ordering;

loom::lazy_static! {
    static ref TURNSTILE: AtomicUsize = AtomicUsize::new(0);
}

fn pass() {
    TURNSTILE.fetch_add(0, Ordering::Relaxed);
}

macro_rules! atomic {
    ($name:ident, $value:ty $(, $number:ident)?) => {
        /// As the standard one of this name.
        #[derive(Debug)]
        pub struct $name(loom::sync::atomic::$name);

        impl Default for $name {
            fn default() -> Self {
                Self::new(Default::default())
            }
        }

        #[allow(missing_docs)] // as the standard ones of these names
        impl $name {
            pub fn new(value: $value) -> Self {
                // Made here, where there is one thread as yet: loom takes the making for a release
                // to all who come later.
                let _ = &*TURNSTILE;
                Self(loom::sync::atomic::$name::new(value))
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                pass();
                self.0.load(order)
            }

            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                pass();
                self.0.store(value, order);
            }

            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                pass();
                self.0.swap(value, order)
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                pass();
                self.0.compare_exchange(from, to, success, failure)
            }

            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(from, to, success, failure)
            }

            #[track_caller]
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                change: impl Fn($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut now = self.load(failure);
                while let Some(next) = change(now) {
                    match self.compare_exchange(now, next, success, failure) {
                        Ok(before) => return Ok(before),
                        Err(other) => now = other,
                    }
                }
                Err(now)
            }

            $(
                #[track_caller]
                pub fn fetch_add(&self, $number: $value, order: Ordering) -> $value {
                    pass();
                    self.0.fetch_add($number, order)
                }

                #[track_caller]
                pub fn fetch_sub(&self, $number: $value, order: Ordering) -> $value {
                    pass();
                    self.0.fetch_sub($number, order)
                }

                #[track_caller]
                pub fn fetch_max(&self, $number: $value, order: Ordering) -> $value {
                    pass();
                    self.0.fetch_max($number, order)
                }
            )?
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU32, u32, number);
atomic!(AtomicU64, u64, number);
