//! Histories of concurrent calls: each is a step before, in and after the driver. The model of the
//! driver reuses freed handles and addresses at once.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const SLOTS: u64 = 8;
const STEP: u64 = 2 * MIB;

fn address_of(slot: u64) -> Address {
    Address(BASE + slot * STEP)
}

fn length(slots: u64) -> Bytes {
    Bytes(slots * STEP)
}

#[derive(Debug)]
struct Memory {
    slots: u64,
    /// Whether this process is charged.
    ours: bool,
    exported: bool,
    /// Its value while handles exist.
    handle: Option<u64>,
    references: u64,
    mappings: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mapped {
    slots: u64,
    id: usize,
    number: u64,
    returned: bool,
}

#[derive(Debug, Default)]
struct Driver {
    memory: BTreeMap<usize, Memory>,
    mapped: BTreeMap<u64, Mapped>,
    made: usize,
    mappings: u64,
}

impl Driver {
    /// Returns the smallest unused handle value.
    fn value(&self) -> u64 {
        let taken = |value: &u64| self.memory.values().any(|it| it.handle == Some(*value));
        (1..).find(|value| !taken(value)).expect("numbers are many")
    }

    fn create(&mut self, slots: u64, ours: bool) -> (usize, u64) {
        let value = self.value();
        self.made += 1;
        let handle = Some(value);
        let memory = Memory { slots, ours, exported: false, handle, references: 1, mappings: 0 };
        self.memory.insert(self.made, memory);
        (self.made, value)
    }

    fn retain(&mut self, id: usize) -> u64 {
        let fresh = self.value();
        let memory = self.memory.get_mut(&id).expect("alive");
        memory.references += 1;
        *memory.handle.get_or_insert(fresh)
    }

    fn map(&mut self, id: usize, first: u64, slots: u64) -> bool {
        let before = self.mapped.range(..first + slots).next_back();
        if before.is_some_and(|(at, mapped)| at + mapped.slots > first) {
            return false;
        }
        self.memory.get_mut(&id).expect("alive").mappings += 1;
        self.mappings += 1;
        self.mapped.insert(first, Mapped { slots, id, number: self.mappings, returned: false });
        true
    }

    /// Returns the mappings that are entirely in a range.
    fn within(&self, first: u64, slots: u64) -> Vec<(u64, Mapped)> {
        let all = self.mapped.iter().map(|(at, mapped)| (*at, *mapped));
        all.filter(|(at, mapped)| *at >= first && at + mapped.slots <= first + slots).collect()
    }

    /// Frees memory without references. Returns the slots that other processes may hold.
    fn free_unreferenced(&mut self, id: usize) -> u64 {
        let memory = self.memory.get_mut(&id).expect("alive");
        if memory.references == 0 {
            memory.handle = None;
        }
        if memory.references > 0 || memory.mappings > 0 {
            return 0;
        }
        let memory = self.memory.remove(&id).expect("alive");
        if memory.exported && memory.ours { memory.slots } else { 0 }
    }

    fn charged(&self) -> u64 {
        self.memory.values().filter(|it| it.ours).map(|it| it.slots).sum()
    }
}

/// A call of the program.
enum Call<'a> {
    Create { charge: Charge<'a>, slots: u64, made: Option<(usize, u64)> },
    Import { made: Option<(usize, u64)> },
    Retain { reference: Option<Reference<'a>>, id: usize, value: Option<u64> },
    PendingRelease { token: Option<PendingRelease<'a>>, id: usize },
    Map { reference: Option<Reference<'a>>, id: usize, first: u64, slots: u64 },
    Unmap { token: PendingUnmap<'a>, first: u64, slots: u64, latest: u64 },
    Export { reference: Option<Reference<'a>>, id: usize },
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Create(u64),
    Import,
    Retain(usize),
    PendingRelease(usize),
    Map(usize, u64, u64),
    Unmap(u64, u64),
    Export(usize),
    /// The driver executes a call, or refuses it.
    Drive(usize, bool),
    Return(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..16_usize;
    prop_oneof![
        3 => (1..4_u64).prop_map(Step::Create),
        1 => Just(Step::Import),
        2 => which.clone().prop_map(Step::Retain),
        4 => which.clone().prop_map(Step::PendingRelease),
        4 => (which.clone(), 0..SLOTS, 1..4_u64)
            .prop_map(|(which, first, slots)| Step::Map(which, first, slots)),
        3 => (0..SLOTS, 1..SLOTS).prop_map(|(first, slots)| Step::Unmap(first, slots)),
        1 => which.clone().prop_map(Step::Export),
        12 => (which.clone(), prop::bool::weighted(0.85))
            .prop_map(|(which, yes)| Step::Drive(which, yes)),
        12 => which.prop_map(Step::Return),
    ]
}

struct Fixture<'a> {
    tenant: &'a Tenant,
    driver: Driver,
    /// What the program holds: memory and handle value.
    held: Vec<(usize, u64)>,
    /// Calls that have not reached the driver.
    begun: Vec<Call<'a>>,
    /// Calls that the driver has executed.
    done: Vec<Call<'a>>,
    /// Slots that others may hold.
    kept: u64,
}

impl<'a> Fixture<'a> {
    fn pick(&self, which: usize) -> Option<(usize, u64)> {
        self.held.get(which % self.held.len().max(1)).copied()
    }

    /// Returns whether a call for this memory has not reached the driver: a program does not end
    /// the handle or mapping meanwhile.
    fn is_named(&self, of: usize) -> bool {
        self.begun.iter().any(|call| match *call {
            Call::Map { id, .. } | Call::Retain { id, .. } | Call::Export { id, .. } => id == of,
            _ => false,
        })
    }

    fn is_unmapping(&self) -> bool {
        self.begun.iter().any(|call| matches!(call, Call::Unmap { .. }))
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Drive(which, yes) => {
                if !self.begun.is_empty() {
                    let call = self.begun.swap_remove(which % self.begun.len());
                    if yes { self.drive(call) } else { self.refuse(call) }
                }
            }
            Step::Return(which) => {
                if !self.done.is_empty() {
                    let call = self.done.swap_remove(which % self.done.len());
                    self.finish(call);
                }
            }
            _ => {
                let call = self.call(step);
                self.begun.extend(call);
            }
        }
    }

    /// Begins a call; `None` if nothing exists for it.
    fn call(&mut self, step: Step) -> Option<Call<'a>> {
        let tenant = self.tenant;
        Some(match step {
            Step::Create(slots) => Call::Create {
                charge: tenant.charge(gpu(), length(slots)).ok()?,
                slots,
                made: None,
            },
            Step::Import => Call::Import { made: None },
            Step::Retain(which) => {
                let returned: Vec<_> =
                    self.driver.mapped.iter().filter(|(_, it)| it.returned).collect();
                let (at, mapped) = *returned.get(which % returned.len().max(1))?;
                if self.is_unmapping() {
                    return None;
                }
                let inside = Address(address_of(at + mapped.slots).0 - 1);
                Call::Retain {
                    reference: tenant.physical().reference_at(inside),
                    id: mapped.id,
                    value: None,
                }
            }
            Step::PendingRelease(which) => {
                let (id, value) = self.pick(which).filter(|(id, _)| !self.is_named(*id))?;
                self.held.swap_remove(which % self.held.len());
                Call::PendingRelease {
                    token: tenant.physical().begin_release(PhysicalHandle(value)),
                    id,
                }
            }
            Step::Map(which, first, slots) => {
                let (id, value) = self.pick(which)?;
                let slots = slots.min(self.driver.memory[&id].slots);
                Call::Map {
                    reference: tenant.physical().reference(PhysicalHandle(value)),
                    id,
                    first,
                    slots,
                }
            }
            Step::Unmap(first, slots) => {
                let within = self.driver.within(first, slots);
                if within.iter().any(|(_, it)| !it.returned || self.is_named(it.id)) {
                    return None;
                }
                Call::Unmap {
                    token: tenant.physical().begin_unmap(),
                    first,
                    slots,
                    latest: self.driver.mappings,
                }
            }
            Step::Export(which) => {
                let (id, value) = self.pick(which)?;
                Call::Export { reference: tenant.physical().reference(PhysicalHandle(value)), id }
            }
            Step::Drive(..) | Step::Return(_) => return None,
        })
    }

    fn drive(&mut self, mut call: Call<'a>) {
        let driver = &mut self.driver;
        match &mut call {
            Call::Create { slots, made, .. } => *made = Some(driver.create(*slots, true)),
            Call::Import { made } => *made = Some(driver.create(5, false)),
            Call::Retain { id, value, .. } => *value = Some(driver.retain(*id)),
            Call::PendingRelease { id, .. } => {
                driver.memory.get_mut(id).expect("alive").references -= 1;
                self.kept += driver.free_unreferenced(*id);
            }
            Call::Map { id, first, slots, .. } => {
                if !driver.map(*id, *first, *slots) {
                    return;
                }
            }
            Call::Unmap { first, slots, latest, .. } => {
                let within = driver.within(*first, *slots);
                // A program does not unmap in one thread what another one is mapping.
                if within.iter().any(|(_, it)| it.number > *latest) {
                    return;
                }
                for (at, mapped) in within {
                    driver.mapped.remove(&at);
                    driver.memory.get_mut(&mapped.id).expect("alive").mappings -= 1;
                    self.kept += driver.free_unreferenced(mapped.id);
                }
            }
            Call::Export { id, .. } => driver.memory.get_mut(id).expect("alive").exported = true,
        }
        self.done.push(call);
    }

    fn refuse(&mut self, call: Call<'a>) {
        if let Call::PendingRelease { token, id } = call {
            drop(token);
            let value = self.driver.memory[&id].handle.expect("still held");
            self.held.push((id, value));
        }
    }

    fn finish(&mut self, call: Call<'a>) {
        match call {
            Call::Create { charge, made, .. } => {
                let (id, value) = made.expect("driven");
                assert_eq!(charge.created(PhysicalHandle(value)), CommitOutcome::Recorded);
                self.held.push((id, value));
            }
            Call::Import { made } => {
                let (id, value) = made.expect("driven");
                self.tenant.physical().received(PhysicalHandle(value));
                self.held.push((id, value));
            }
            Call::Retain { reference, id, value } => {
                let value = value.expect("driven");
                match reference {
                    Some(reference) => reference.retained(PhysicalHandle(value)),
                    None => self.tenant.physical().received(PhysicalHandle(value)),
                }
                self.held.push((id, value));
            }
            Call::PendingRelease { token, .. } => {
                token.into_iter().for_each(PendingRelease::released)
            }
            Call::Map { reference, first, slots, .. } => {
                if let Some(reference) = reference {
                    reference.mapped(address_of(first), length(slots));
                }
                self.driver.mapped.get_mut(&first).expect("no unmap before its return").returned =
                    true;
            }
            Call::Unmap { token, first, slots, .. } => {
                token.unmapped(address_of(first), length(slots))
            }
            Call::Export { reference, .. } => reference.into_iter().for_each(Reference::exported),
        }
    }

    fn check_lower_bound(&self) {
        let least = length(self.driver.charged() + self.kept);
        assert!(used(self.tenant) >= least, "{} charged of {least}", used(self.tenant));
        assert!(self.tenant.tables.ledger.is_counted(gpu()));
    }

    fn quiesce(&mut self) {
        while let Some(call) = self.begun.pop() {
            self.drive(call);
        }
        while let Some(call) = self.done.pop() {
            self.finish(call);
            self.check_lower_bound();
        }
        assert_eq!(used(self.tenant), length(self.driver.charged() + self.kept));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn charges_equal_the_model_of_the_driver(
        histories in prop::collection::vec(prop::collection::vec(step(), 0..80), 1..4),
    ) {
        let container = Container::limited(100);
        let tenant = container.tenant();
        let (held, begun, done) = (Vec::new(), Vec::new(), Vec::new());
        let mut fixture =
            Fixture { tenant: &tenant, driver: Driver::default(), held, begun, done, kept: 0 };
        for steps in histories {
            for step in steps {
                fixture.apply(step);
                fixture.check_lower_bound();
            }
            fixture.quiesce();
        }
        // Everything is unmapped and released.
        fixture.apply(Step::Unmap(0, 2 * SLOTS));
        fixture.quiesce();
        while !fixture.held.is_empty() {
            fixture.apply(Step::PendingRelease(0));
            fixture.quiesce();
        }
        prop_assert_eq!(used(&tenant), length(fixture.kept));
        prop_assert!(tenant.tables.physical.lock().is_empty());
    }
}
