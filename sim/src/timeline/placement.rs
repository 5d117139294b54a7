//! Placement: which commands of the current group compute on a GPU, and how fast.
//!
//! Kernels are fluids. One that occupies a share `f` of the GPU and has been given `g` runs at the
//! rate `g / f`, so that a kernel alone takes exactly its own time whatever its grid. Shares follow
//! the leftover policy of the block scheduler, as measured by Amert et al., "GPU scheduling on the
//! NVIDIA TX2", RTSS 2017. In order of urgency, then of arrival, each gets what it needs; the first
//! that cannot have all gets what is left, and those behind it nothing. A kernel with all its
//! blocks on the GPU keeps them to its end. One with blocks to come loses its share to a more
//! urgent one, as its blocks end soon and are not replaced. A cooperative kernel gets all it needs
//! at once, or waits, and those behind it wait, too.
//!
//! Fluids, because the blocks of 25 programs would be far too many events (thousands per
//! millisecond), and because the length that a name gives is a kernel's, not a block's. They cannot
//! show a tail: the last wave of a grid leaves a part of a GPU to others.
//!
//! All times are whole nanoseconds. The remaining work of a command is kept as nanoseconds at full
//! rate times [`FULL`], and changes only when its rate does, so it does not depend on when it is
//! read.

use cgpu_shm::units::Nanos;

use super::Timeline;
use super::agenda::{self, Due};
use super::command::Kind;
use super::engine::State;
use super::group::{FRONT_END, Turn, placed_of, ready_of};
use super::head::Head;
use super::records::{ContextId, Gpu, Group, LEVELS, StreamId};
use crate::footprint::Footprint;
use crate::kernel::NEVER;
use crate::words::{At, Words};

/// The rate of a command that has all it needs. A finer grid would shorten the longest kernel, 4.8
/// hours; a coarser one would round the rate of a leftover.
const FULL: u64 = 1 << 18;
/// Length of the longest command that ends, in nanoseconds at full rate.
const LONGEST: u64 = NEVER.0 / FULL;
/// Parts in which a slow-down is given.
const MILLION: u64 = 1_000_000;

#[derive(PartialEq, Eq)]
enum Placed {
    /// It has all it needs, and keeps it.
    All,
    /// Nothing is left for those behind it.
    Part,
}

impl<W: Words> Timeline<'_, W> {
    /// Gives the GPU's free parts to waiting streams of the group, which is running.
    pub(super) fn place(&mut self, gpu: Gpu, group: Group, t: Nanos) {
        for urgency in 0..LEVELS {
            let ready = ready_of(group, urgency);
            loop {
                let stream = StreamId(ready.first(self.words));
                if stream.0 == 0 {
                    break;
                }
                if self.place_first(gpu, group, urgency, stream, t) == Placed::Part {
                    return;
                }
                ready.remove(self.words, stream.0);
                placed_of(group).push(self.words, stream.0);
                self.set_head(stream, Head::Placed);
            }
        }
    }

    fn place_first(
        &mut self,
        gpu: Gpu,
        group: Group,
        urgency: u64,
        stream: StreamId,
        t: Nanos,
    ) -> Placed {
        if urgency == FRONT_END {
            self.run(gpu, stream, t);
            return Placed::All;
        }
        let footprint = self.head_footprint(stream);
        let has = self.get(stream.share());
        let missing = footprint.share - has;
        if missing == 0 {
            return Placed::Part;
        }
        let mut left = Footprint::GPU - self.get(group.taken());
        if left < missing {
            left += self.displace(gpu, group, urgency, missing - left, t);
        }
        let more = left.min(missing);
        let enough = if footprint.cooperative {
            missing
        } else {
            footprint.block.saturating_sub(has).max(1)
        };
        if more < enough {
            return Placed::Part;
        }
        self.give(gpu, group, stream, has + more, t);
        if more == missing && !footprint.waves { Placed::All } else { Placed::Part }
    }

    /// Takes up to `wanted` from less urgent commands that have blocks to come. Returns the sum.
    fn displace(&mut self, gpu: Gpu, group: Group, urgency: u64, wanted: u64, t: Nanos) -> u64 {
        let mut freed = 0;
        for less_urgent in (urgency + 1..LEVELS).rev() {
            let stream = StreamId(ready_of(group, less_urgent).first(self.words));
            let share = if stream.0 == 0 { 0 } else { self.get(stream.share()) };
            let back = share.min(wanted - freed);
            if back != 0 {
                self.give(gpu, group, stream, share - back, t);
                freed += back;
            }
        }
        freed
    }

    fn give(&mut self, gpu: Gpu, group: Group, stream: StreamId, share: u64, t: Nanos) {
        let had = self.get(stream.share());
        let taken = self.get(group.taken()) + share - had;
        self.set(group.taken(), taken);
        self.set(stream.share(), share);
        if had == 0 {
            self.run(gpu, stream, t);
        } else if share == 0 {
            self.halt(gpu, stream, t);
        } else {
            self.set_rate(gpu, stream, t);
        }
    }

    /// Starts to compute the head of a stream, perhaps from its beginning.
    fn run(&mut self, gpu: Gpu, stream: StreamId, t: Nanos) {
        self.resume(gpu, stream, t);
        if self.kind(self.head_slot(stream)) == Kind::Kernel {
            self.join_rendezvous(stream, t);
        }
    }

    /// Computes the head of a stream with the share that it has.
    pub(super) fn resume(&mut self, gpu: Gpu, stream: StreamId, t: Nanos) {
        self.count_in(gpu.running(), gpu.run_start(), t);
        if self.figures.mps != 0 {
            let context = ContextId(self.get(stream.context()));
            self.count_in(context.running(), context.run_start(), t);
        }
        if self.figures.corun != 0 && self.head_footprint(stream) != Footprint::NONE {
            self.add(gpu.kernels(), 1);
            self.slow_down_at(gpu, stream, 2, t);
        }
        self.set_rate(gpu, stream, t);
    }

    /// Pauses the head of a stream, and accounts for what it has done.
    pub(super) fn halt(&mut self, gpu: Gpu, stream: StreamId, t: Nanos) {
        self.stop(gpu, stream, t);
        self.count_out(gpu, ContextId(self.get(stream.context())), t);
    }

    fn stop(&mut self, gpu: Gpu, stream: StreamId, t: Nanos) {
        self.account_command(gpu, stream, t);
        self.set(stream.rate(), 0);
        agenda::cancel(self.words, Due::Stream(stream));
        if self.figures.corun != 0 && self.head_footprint(stream) != Footprint::NONE {
            self.subtract(gpu.kernels(), 1);
            self.slow_down_at(gpu, stream, 1, t);
        }
    }

    #[inline]
    fn count_in(&mut self, running: At, since: At, t: Nanos) {
        if self.get(running) == 0 {
            self.set(since, t.0);
        }
        self.add(running, 1);
    }

    /// Counts one running command less. Called after its replacement has been counted, so that busy
    /// time stays in one piece.
    fn count_out(&mut self, gpu: Gpu, context: ContextId, t: Nanos) {
        if self.get(gpu.running()) == 1 {
            self.account_gpu(gpu, t);
        }
        self.subtract(gpu.running(), 1);
        if self.figures.mps != 0 {
            if self.get(context.running()) == 1 {
                self.account_merged(gpu, context, t);
            }
            self.subtract(context.running(), 1);
        }
    }

    /// Completes the head of a stream, which has computed everything.
    pub(super) fn computed(&mut self, stream: StreamId, t: Nanos) {
        let context = ContextId(self.get(stream.context()));
        let (gpu, group) = (Gpu(self.get(context.gpu())), self.group_of(context));
        self.stop(gpu, stream, t);
        self.withdraw(group, stream);
        self.complete(stream, t);
        self.continue_group(gpu, group, t);
        self.count_out(gpu, context, t);
    }

    pub(super) fn drop_computing(&mut self, stream: StreamId, t: Nanos) {
        let context = ContextId(self.get(stream.context()));
        let (gpu, group) = (Gpu(self.get(context.gpu())), self.group_of(context));
        if self.get(stream.rate()) != 0 {
            self.halt(gpu, stream, t);
        }
        self.withdraw(group, stream);
        self.leave_rendezvous(stream);
        if self.turn(group) == Turn::Current && self.engine_state(gpu) == State::Running {
            self.continue_group(gpu, group, t);
        }
    }

    /// Removes a stream from its group's lists, and frees its share.
    fn withdraw(&mut self, group: Group, stream: StreamId) {
        let placed = self.head(stream) == Head::Placed;
        let list = if placed { placed_of(group) } else { ready_of(group, self.urgency_of(stream)) };
        list.remove(self.words, stream.0);
        let share = self.get(stream.share());
        self.subtract(group.taken(), share);
        self.set(stream.share(), 0);
    }

    /// Sets the rate from the need and the share of a stream's head.
    fn set_rate(&mut self, gpu: Gpu, stream: StreamId, t: Nanos) {
        let share = self.get(stream.share());
        let takes = self.head_footprint(stream).share;
        let rate = if share == takes { FULL } else { share * FULL / takes };
        let slow = self.figures.corun != 0 && share != 0 && self.get(gpu.kernels()) > 1;
        let rate = if slow { rate * MILLION / (MILLION + self.figures.corun) } else { rate };
        if self.get(stream.rate()) == 0 {
            self.set(stream.since(), t.0);
        } else {
            self.account_command(gpu, stream, t);
        }
        self.set(stream.rate(), rate.max(1));
        self.schedule_end(stream);
    }

    /// Changes all rates when the number of concurrent kernels reaches `kernels`: concurrent
    /// kernels are slower.
    fn slow_down_at(&mut self, gpu: Gpu, stream: StreamId, kernels: u64, t: Nanos) {
        if self.get(gpu.kernels()) != kernels {
            return;
        }
        let group = self.group_of(ContextId(self.get(stream.context())));
        self.each_on_gpu(gpu, group, t, |this, gpu, each, t| {
            if this.get(each.rate()) != 0 {
                this.set_rate(gpu, each, t);
            }
        });
    }

    /// Sets the remaining work of a stream's head; for one that computes, from now on.
    pub(super) fn set_remaining(&mut self, stream: StreamId, cost: Nanos, t: Nanos) {
        let remaining = if cost.0 > LONGEST { NEVER.0 } else { cost.0 * FULL };
        let runs = self.get(stream.rate()) != 0;
        if runs {
            let gpu = Gpu(self.get(ContextId(self.get(stream.context())).gpu()));
            self.account_command(gpu, stream, t);
        }
        self.set(stream.remaining(), remaining);
        if runs {
            self.schedule_end(stream);
        }
    }

    /// Subtracts what the head of a stream has computed up to `t` from its remaining work.
    pub(super) fn account_command(&mut self, gpu: Gpu, stream: StreamId, t: Nanos) {
        let since = Nanos(self.get(stream.since()));
        if since == t || self.get(stream.rate()) == 0 {
            return;
        }
        let remaining = self.get(stream.remaining());
        // A kernel that never ends stays so.
        if remaining < NEVER.0 {
            let done = (t.0 - since.0) * self.get(stream.rate());
            self.set(stream.remaining(), remaining.saturating_sub(done));
        }
        self.set(stream.since(), t.0);
        self.trace_computed(gpu, stream, since, t);
    }

    fn schedule_end(&mut self, stream: StreamId) {
        let remaining = self.get(stream.remaining());
        if remaining < NEVER.0 {
            let end = self.get(stream.since()) + remaining.div_ceil(self.get(stream.rate()));
            agenda::schedule(self.words, Due::Stream(stream), Nanos(end));
        } else {
            agenda::cancel(self.words, Due::Stream(stream));
        }
    }
}
