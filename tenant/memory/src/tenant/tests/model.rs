//! Whole histories of a container's processes, against a model.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::doubles::Container;

const LIMIT_MIB: u64 = 16;
const PROCESSES: usize = 3;
const CONTEXT: Bytes = Bytes(MIB / 2);

/// What a program may do, and the driver return. Numbers select among what exists.
#[derive(Clone, Debug)]
enum Step {
    Charge { process: usize, size: u64 },
    Commit { which: usize, context: Option<usize> },
    DriverRefuses { which: usize },
    Free { process: usize, which: usize },
    FreeRefused { process: usize, which: usize },
    FreeUnknown { process: usize },
    CreateContext { process: usize },
    DestroyContext { process: usize, which: usize },
    DestroyRefused { process: usize, which: usize },
    Wait { millis: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let process = 0..PROCESSES;
    let which = 0..64_usize;
    let size = prop_oneof![1..3000_u64, (MIB - 600)..(MIB + 600), 1..8 * MIB];
    prop_oneof![
        6 => (process.clone(), size).prop_map(|(process, size)| Step::Charge { process, size }),
        6 => (which.clone(), proptest::option::of(which.clone()))
            .prop_map(|(which, context)| Step::Commit { which, context }),
        1 => which.clone().prop_map(|which| Step::DriverRefuses { which }),
        3 => (process.clone(), which.clone())
            .prop_map(|(process, which)| Step::Free { process, which }),
        1 => (process.clone(), which.clone())
            .prop_map(|(process, which)| Step::FreeRefused { process, which }),
        1 => process.clone().prop_map(|process| Step::FreeUnknown { process }),
        2 => process.clone().prop_map(|process| Step::CreateContext { process }),
        1 => (process.clone(), which.clone())
            .prop_map(|(process, which)| Step::DestroyContext { process, which }),
        1 => (process, which).prop_map(|(process, which)| Step::DestroyRefused { process, which }),
        1 => (0..700_u64).prop_map(|millis| Step::Wait { millis }),
    ]
}

#[derive(Debug, Default)]
struct Accounting {
    /// By address: size, and the context that it ends with.
    live: BTreeMap<u64, (Bytes, Option<ContextId>)>,
    contexts: Vec<(ContextId, Bytes)>,
}

impl Accounting {
    fn total(&self) -> Bytes {
        self.live.values().map(|it| it.0).sum::<Bytes>() + self.contexts.iter().map(|it| it.1).sum()
    }
}

/// The whole container: the accounting under test and the model.
struct Fixture<'a> {
    container: &'a Container,
    tenants: &'a [Tenant],
    accounts: Vec<Accounting>,
    /// Charges whose calls are in the driver.
    pending: Vec<(usize, Charge<'a>)>,
    next: u64,
}

fn rounded(size: u64) -> Bytes {
    let multiple = if size < MIB { 512 } else { 2 * MIB };
    Bytes(size.div_ceil(multiple) * multiple)
}

impl<'a> Fixture<'a> {
    fn total(&self) -> Bytes {
        let pending: Bytes = self.pending.iter().map(|(_, charge)| charge.bytes()).sum();
        self.accounts.iter().map(Accounting::total).sum::<Bytes>() + pending
    }

    fn fits(&self, bytes: Bytes) -> bool {
        self.total() + bytes <= mib(LIMIT_MIB)
    }

    fn charge(&mut self, process: usize, size: u64) {
        let fits = self.fits(rounded(size));
        match self.tenants[process].charge(gpu(), Bytes(size)) {
            Ok(charge) => {
                assert!(fits, "{size} more than there was room for");
                assert_eq!(charge.bytes(), rounded(size));
                self.pending.push((process, charge));
            }
            Err(denied) => {
                assert!(!fits, "refused what fits: {denied:?}");
                assert_eq!(denied.used, self.total());
            }
        }
    }

    fn commit(&mut self, which: usize, context: Option<usize>) {
        if self.pending.is_empty() {
            return;
        }
        let (process, charge) = self.pending.swap_remove(which % self.pending.len());
        let contexts = &self.accounts[process].contexts;
        let context =
            context.and_then(|which| contexts.get(which % contexts.len().max(1))).map(|it| it.0);
        let known = context
            .map(|handle| self.tenants[process].contexts().find(handle).expect("it is known"));
        // Mostly neighbours, at times distant addresses.
        self.next += if which.is_multiple_of(5) { 3 << 24 } else { 8 * MIB };
        let bytes = charge.bytes();
        assert_eq!(charge.commit(Address(self.next), known), CommitOutcome::Recorded);
        self.accounts[process].live.insert(self.next, (bytes, context));
    }

    fn pick(&self, process: usize, which: usize) -> Option<u64> {
        let live = &self.accounts[process].live;
        live.keys().nth(which % live.len().max(1)).copied()
    }

    fn create(&mut self, process: usize) {
        let known =
            Bytes(self.tenants[process].region().gpu(gpu()).context.load(Ordering::Relaxed));
        let fits = self.fits(known);
        match self.tenants[process].contexts().begin_create(gpu(), || Some(mib(90))) {
            Ok(starting) => {
                assert!(fits);
                let handle = self.container.handle();
                starting.created(handle, || Some(mib(90) - CONTEXT));
                self.accounts[process].contexts.push((handle, CONTEXT));
            }
            Err(denied) => {
                assert!(!fits, "refused what fits: {denied:?}");
                assert_eq!(denied.reason, Reason::ContextOverLimit);
            }
        }
    }

    fn leave(&mut self, process: usize, which: usize, destroyed: bool) {
        let contexts = &mut self.accounts[process].contexts;
        if contexts.is_empty() {
            return;
        }
        let index = which % contexts.len();
        let handle = contexts[index].0;
        let leaving = self.tenants[process].contexts().begin_destroy(handle).expect("it is known");
        if destroyed {
            contexts.swap_remove(index);
            self.accounts[process].live.retain(|_, it| it.1 != Some(handle));
            leaving.destroyed();
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Charge { process, size } => self.charge(process, size),
            Step::Commit { which, context } => self.commit(which, context),
            Step::DriverRefuses { which } if !self.pending.is_empty() => {
                drop(self.pending.swap_remove(which % self.pending.len()));
            }
            Step::Free { process, which } => {
                if let Some(address) = self.pick(process, which) {
                    self.tenants[process]
                        .allocations()
                        .begin_free(Address(address))
                        .expect("it is live")
                        .freed();
                    self.accounts[process].live.remove(&address);
                }
            }
            Step::FreeRefused { process, which } => {
                if let Some(address) = self.pick(process, which) {
                    drop(
                        self.tenants[process]
                            .allocations()
                            .begin_free(Address(address))
                            .expect("it is live"),
                    );
                }
            }
            Step::FreeUnknown { process } => {
                assert!(
                    self.tenants[process]
                        .allocations()
                        .begin_free(Address(self.next + 512))
                        .is_none()
                );
            }
            Step::CreateContext { process } => self.create(process),
            Step::DestroyContext { process, which } => self.leave(process, which, true),
            Step::DestroyRefused { process, which } => self.leave(process, which, false),
            Step::Wait { millis } => self.container.clock.advance(Nanos::from_millis(millis)),
            Step::DriverRefuses { .. } => {}
        }
        self.check();
    }

    /// Lets all calls return. Those of a process that is killed would stay charged all the same.
    fn end(mut self) -> (Vec<Accounting>, u64) {
        while !self.pending.is_empty() {
            self.commit(0, None);
        }
        self.check();
        (self.accounts, self.next)
    }

    fn check(&self) {
        let total = self.total();
        for (tenant, accounts) in self.tenants.iter().zip(&self.accounts) {
            assert_eq!(tenant.view().usage(gpu()).total(), total);
            let view = tenant.view().memory(gpu(), mib(90)).expect("a limit is set");
            assert_eq!(view.free, mib(LIMIT_MIB) - total);
            assert_eq!(view.used + view.free, view.total);
            assert!(tenant.tables.ledger.is_counted(gpu()));
            let live = accounts.live.values().map(|it| it.0).sum();
            assert_eq!(tenant.tables.allocations.count(), (accounts.live.len(), live));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Histories, after each of which one process exits and another one starts.
    #[test]
    fn charges_equal_the_model(
        histories in proptest::collection::vec(
            (proptest::collection::vec(step(), 0..60), 0..PROCESSES),
            1..4,
        ),
    ) {
        let container = Container::limited(LIMIT_MIB);
        let mut tenants: Vec<Tenant> = (0..PROCESSES).map(|_| container.tenant()).collect();
        let mut accounts: Vec<Accounting> = (0..PROCESSES).map(|_| Accounting::default()).collect();
        let mut next = 0x7f00_0000_0000;
        for (steps, exits) in histories {
            let mut fixture = Fixture {
                container: &container,
                tenants: &tenants,
                accounts,
                pending: Vec::new(),
                next,
            };
            for step in &steps {
                fixture.apply(step);
            }
            (accounts, next) = fixture.end();
            prop_assert!(tenants.iter().all(|tenant| tenant.tables.allocations.is_valid()));

            let total: Bytes = accounts.iter().map(Accounting::total).sum();
            let left = std::mem::take(&mut accounts[exits]).total();
            drop(tenants.remove(exits));
            let region = tenants[0].region();
            for usage in [
                Usage { draining: Bytes::ZERO, ..tenants[0].view().usage(gpu()) },
                Usage { draining: left, ..tenants[0].view().usage(gpu()) },
            ] {
                prop_assert_eq!(
                    usage.total(),
                    total,
                    "its memory stays accounted until it is gone"
                );
                prop_assert_eq!(tenants[0].view().usage(gpu()), usage);
                region.sweep(container.clock.now(), false).expect("it can be scanned");
            }
            container.clock.advance(Nanos::from_millis(600));
            region.sweep(container.clock.now(), false).expect("it can be scanned");
            prop_assert_eq!(tenants[0].view().usage(gpu()).total(), total - left);
            tenants.insert(exits, container.tenant());
        }
    }
}
