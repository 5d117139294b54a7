//! Accounting statistics of processes on a GPU, also after their end.
//!
//! While accounting mode is enabled on a GPU, a process has a record there from its first context
//! on. Each GPU keeps the last 4,000, also of ended processes.

use cgpu_shm::units::{Bytes, Nanos};

use super::Timeline;
use super::records::{Account, GPUS, Gpu, Holding, Process};
use crate::words::{Words, index};

/// Records per GPU.
pub const ACCOUNTS: u64 = 4_000;

/// Accounting statistics of a process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountStats {
    /// Its id in its own PID namespace.
    pub pid: u32,
    /// Its identity: namespace, and its anchor's device and inode.
    pub identity: [u64; 3],
    /// When it first used the GPU.
    pub begun: Nanos,
    /// When it ended; `None` while it runs.
    pub ended: Option<Nanos>,
    /// How long its commands computed.
    pub busy: Nanos,
    /// The maximum of its memory use.
    pub highest: Bytes,
}

const RUNNING: u64 = 1;
const ENDED: u64 = 2;

impl<W: Words> Timeline<'_, W> {
    /// Stores the identity of an attached process.
    pub fn set_identity(&mut self, process: usize, identity: [u64; 3]) {
        let process = Process(process as u64);
        for (at, value) in
            [process.namespace(), process.device(), process.inode()].into_iter().zip(identity)
        {
            self.set(at, value);
        }
    }

    /// Returns whether a GPU has accounting mode enabled.
    #[must_use]
    pub fn accounting_mode(&self, gpu: usize) -> bool {
        self.get(Gpu(gpu as u64).accounting()) != 0
    }

    /// Enables accounting mode on a GPU, or disables it and clears all records.
    pub fn set_accounting_mode(&mut self, gpu: usize, enabled: bool) {
        if !enabled {
            self.each_account(gpu, |this, account| this.set(account.state(), 0));
        }
        self.set(Gpu(gpu as u64).accounting(), u64::from(enabled));
    }

    /// Clears the records of processes that have ended.
    pub fn clear_accounting(&mut self, gpu: usize) {
        self.each_account(gpu, |this, account| {
            if this.get(account.state()) == ENDED {
                this.set(account.state(), 0);
            }
        });
    }

    fn each_account(&mut self, gpu: usize, act: impl Fn(&mut Self, Account)) {
        for account in self.kept(Gpu(gpu as u64)) {
            act(self, account);
            // Thousands of them: each is a change by itself.
            self.words.seam();
        }
    }

    /// Returns the records of a GPU that may be in use, oldest first.
    fn kept(&self, gpu: Gpu) -> Vec<Account> {
        let made = self.get(gpu.accounts());
        (made.saturating_sub(ACCOUNTS) + 1..=made).map(|number| Account::of(gpu, number)).collect()
    }

    /// Opens a record for a process that starts to use a GPU.
    pub(super) fn open_account(&mut self, process: Process, gpu: Gpu) {
        let holding = Holding::of(process, gpu);
        if self.get(gpu.accounting()) == 0 || self.account_of(holding, gpu).is_some() {
            return;
        }
        let number = self.get(gpu.accounts()) + 1;
        let account = Account::of(gpu, number);
        for (at, value) in [
            (gpu.accounts(), number),
            (holding.account(), number),
            (account.number(), number),
            (account.state(), RUNNING),
            (account.pid(), self.get(process.pid())),
            (account.namespace(), self.get(process.namespace())),
            (account.device(), self.get(process.device())),
            (account.inode(), self.get(process.inode())),
            (account.begun(), self.now().0),
            (account.ended(), 0),
            (account.busy(), self.get(holding.busy())),
            (account.highest(), self.get(holding.memory())),
        ] {
            self.set(at, value);
        }
    }

    /// Returns the open record of a process on a GPU, unless it was overwritten or cleared.
    fn account_of(&self, holding: Holding, gpu: Gpu) -> Option<Account> {
        let number = self.get(holding.account());
        let account = Account::of(gpu, number);
        let its = number != 0
            && self.get(account.number()) == number
            && self.get(account.state()) == RUNNING;
        its.then_some(account)
    }

    /// Updates the maximum after a process's memory has grown.
    pub(super) fn note_memory(&mut self, holding: Holding, gpu: Gpu) {
        if self.get(holding.account()) == 0 {
            return;
        }
        if let Some(account) = self.account_of(holding, gpu) {
            let (memory, highest) = (self.get(holding.memory()), self.get(account.highest()));
            self.set(account.highest(), memory.max(highest));
        }
    }

    pub(super) fn close_accounts(&mut self, process: Process, t: Nanos) {
        for gpu in (0..GPUS).map(Gpu) {
            let holding = Holding::of(process, gpu);
            if let Some(account) = self.account_of(holding, gpu) {
                let busy = self.get(holding.busy()) - self.get(account.busy());
                self.set(account.busy(), busy);
                self.set(account.ended(), t.0);
                self.set(account.state(), ENDED);
            }
            self.set(holding.account(), 0);
            self.words.seam();
        }
    }

    /// Returns the statistics of a GPU, oldest first, up to the last [`Timeline::account_up_to`].
    #[must_use]
    pub fn accounts(&self, gpu: usize) -> Vec<AccountStats> {
        let gpu = Gpu(gpu as u64);
        let open: Vec<(u64, u64)> = (0..super::records::PROCESSES)
            .map(|process| Holding::of(Process(process), gpu))
            .filter(|holding| self.account_of(*holding, gpu).is_some())
            .map(|holding| (self.get(holding.account()), self.get(holding.busy())))
            .collect();
        let stats = |account: Account| {
            let before = self.get(account.busy());
            let running = open.iter().find(|(number, _)| *number == self.get(account.number()));
            AccountStats {
                pid: u32::try_from(self.get(account.pid())).unwrap_or(0),
                identity: [account.namespace(), account.device(), account.inode()]
                    .map(|at| self.get(at)),
                begun: Nanos(self.get(account.begun())),
                ended: running.is_none().then(|| Nanos(self.get(account.ended()))),
                busy: Nanos(running.map_or(before, |(_, busy)| busy - before)),
                highest: Bytes(self.get(account.highest())),
            }
        };
        self.kept(gpu)
            .into_iter()
            .filter(|account| self.get(account.state()) != 0)
            .map(stats)
            .collect()
    }

    pub(super) fn check_accounts(&self, gpu: Gpu) -> Result<(), String> {
        for process in (0..super::records::PROCESSES).map(Process) {
            let holding = Holding::of(process, gpu);
            let Some(account) = self.account_of(holding, gpu) else { continue };
            let (highest, memory) = (self.get(account.highest()), self.get(holding.memory()));
            if highest < memory {
                return Err(format!(
                    "{account:?} records {highest} bytes of {process:?}, which has {memory}"
                ));
            }
            if self.get(account.busy()) > self.get(holding.busy()) {
                return Err(format!("{account:?} began with more than {process:?} has computed"));
            }
        }
        let made = index(self.get(gpu.accounts()));
        let kept = self.kept(gpu);
        let wrong = kept.iter().find(|account| self.get(account.number()) > made as u64);
        wrong.map_or(Ok(()), |account| Err(format!("{account:?} was never made")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::WORDS;
    use super::*;
    use crate::kernel::Kernel;
    use crate::settings::Figures;
    use crate::words::Plain;

    #[test]
    fn accounting_record_outlives_its_process() {
        let (mut words, figures) = (Plain::new(WORDS), Figures::default());
        let mut timeline = Timeline::new(&mut words, &figures);
        timeline.install(0, Bytes(8 << 30));
        (0..2).for_each(|process| timeline.attach(process, 70 + u32::try_from(process).unwrap()));
        timeline.set_identity(0, [1, 2, 3]);
        timeline.create_context(1, 0).unwrap();
        timeline.set_accounting_mode(0, true);
        timeline.advance(Nanos(5_000));
        let context = timeline.create_context(0, 0).unwrap();
        let stream = timeline.create_stream(context, false).unwrap();
        timeline.reserve(context, Bytes(64 << 20)).unwrap();
        timeline.release(context, Bytes(64 << 20));
        timeline.launch(stream, Kernel::named("spin_2ms"), Nanos(5_000)).unwrap();
        let now = timeline.advance(Nanos::from_millis(10));
        timeline.account_up_to(0, now);
        timeline.check().unwrap();
        // A process that was there before has no record.
        let [one] = timeline.accounts(0)[..] else { panic!("one account") };
        assert_eq!(
            (one.pid, one.identity, one.begun, one.ended),
            (70, [1, 2, 3], Nanos(5_000), None)
        );
        assert_eq!(
            (one.busy, one.highest),
            (Nanos::from_millis(2), figures.context_memory + Bytes(64 << 20))
        );
        timeline.clear_accounting(0);
        timeline.detach(0, now);
        let [one] = timeline.accounts(0)[..] else { panic!("it outlives the process") };
        assert_eq!((one.ended, one.busy), (Some(now), Nanos::from_millis(2)));
        // The slot's next process gets a new record.
        timeline.attach(0, 72);
        timeline.create_context(0, 0).unwrap();
        assert_eq!(
            timeline.accounts(0).iter().map(|account| account.pid).collect::<Vec<_>>(),
            [70, 72]
        );
        timeline.clear_accounting(0);
        assert_eq!(timeline.accounts(0).len(), 1);
        timeline.set_accounting_mode(0, false);
        assert_eq!(timeline.accounts(0), []);
        timeline.check().unwrap();
    }

    #[test]
    fn oldest_accounting_records_are_overwritten() {
        let (mut words, figures) = (Plain::new(WORDS), Figures::default());
        let mut timeline = Timeline::new(&mut words, &figures);
        timeline.install(1, Bytes(8 << 30));
        timeline.set_accounting_mode(1, true);
        for pid in 1..=4_010 {
            timeline.attach(0, pid);
            timeline.create_context(0, 1).unwrap();
            timeline.detach(0, Nanos(u64::from(pid)));
        }
        let all = timeline.accounts(1);
        assert_eq!((all.len(), all[0].pid, all[3_999].pid), (4_000, 11, 4_010));
    }
}
