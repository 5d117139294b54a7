//! Decides which container has a GPU's turn. Pure: from state, time and observations it computes
//! what the gates say.
//!
//! ```text
//!            observations of containers                Plan
//!   daemon  -------------------------> Gpu::advance ------> daemon: grant pages, time of next step
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `gpu` | the containers of a GPU, and one step of it |
//! | `step` | input and output of a step |
//! | [`report`] | validates what containers report |
//! | `tenants`, `learning` | state of a container; what is learned from its turns |
//! | [`policy`] | which containers share the GPU, by which weight |
//! | [`refill`], `rounds`, `rates` | credit: rounds and quanta, fixed shares, the next holder |
//! | `priority`, `allowance` | high priority: takes the GPU at once, up to `prio_ratio` |
//! | `turns`, `turn_phase`, `drain_timeout` | a turn, its phases, how long its end may take |
//! | `background`, `shared_turns`, `bursts` | background work; turns at once |
//! | [`gangs`] | containers that have their turns on several GPUs at the same time |
//! | `turn_accounting`, `debt`, [`accounting`] | cost of turns; old work; sums |
//! | `audit` | what NVML measured, against what was charged |
//! | `gates` | what the gates say |
//! | [`turn_history`], `last_second`, `measured` | the last turns and second |
//! | [`upgrade`] | the state transferred to the next monitor |
//! | [`tuning`] | the times of the scheduler |
//!
//! [`Gpu::advance`] validates the observations, accounts turns that have ended, determines whether
//! the GPU is contended, and takes at most a few steps: a turn closes, drains, and the next one
//! begins. It returns which gates change and when it is to be called again. A late call only loses
//! time; an early one does nothing.
//!
//! `docs/internals/turns.md` has the protocol and the reasons. Limit: the union of overlapping
//! processes of one container counts as the time held.

pub mod accounting;
mod allowance;
mod audit;
mod background;
mod bursts;
mod debt;
mod drain_timeout;
#[cfg(test)]
mod fixture;
pub mod gangs;
mod gates;
mod gpu;
mod last_second;
mod learning;
mod measured;
pub mod policy;
mod priority;
mod rates;
pub mod refill;
pub mod report;
mod rounds;
mod shared_turns;
mod step;
mod tenants;
pub mod tuning;
mod turn_accounting;
pub mod turn_history;
mod turn_phase;
mod turns;
pub mod upgrade;

pub use gpu::{Gpu, Share};
pub use step::{Gate, Observation, Order, Plan, Sharing, TenantId};
