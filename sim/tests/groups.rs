//! Limits of control groups against a plain model: random hierarchies, limits, allocations, frees
//! and moves, for both back ends.

use std::collections::BTreeMap;

use cgpu_sim::settings::Figures;
use cgpu_sim::timeline::{GroupLimit, Timeline, WORDS, Wall};
use cgpu_sim::words::Plain;
use cgpu_sim::{Bytes, Error};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const PROCESSES: usize = 3;
const GROUPS: usize = 6;
const USABLE: u64 = 1_000;

#[derive(Clone, Debug)]
enum Op {
    Move { process: usize, group: usize },
    Limit { group: usize, hard: Option<u64> },
    Controller { group: usize, has: bool },
    Take { process: usize, size: u64 },
    Give { process: usize, size: u64 },
    Exit { process: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let (process, group) = (0..PROCESSES, 0..GROUPS);
    prop_oneof![
        2 => (process.clone(), group.clone()).prop_map(|(process, group)| Op::Move { process, group }),
        3 => (group.clone(), proptest::option::of(0..600_u64))
            .prop_map(|(group, hard)| Op::Limit { group, hard }),
        1 => (group, any::<bool>()).prop_map(|(group, has)| Op::Controller { group, has }),
        6 => (process.clone(), 1..200_u64).prop_map(|(process, size)| Op::Take { process, size }),
        4 => (process.clone(), 1..300_u64).prop_map(|(process, size)| Op::Give { process, size }),
        1 => process.prop_map(|process| Op::Exit { process }),
    ]
}

/// Groups by number. Each one's parent has a lower number.
struct Model {
    wall: Wall,
    parents: Vec<Option<usize>>,
    limits: BTreeMap<usize, u64>,
    bare: [bool; GROUPS],
    in_group: [usize; PROCESSES],
    /// Pieces of each process: the group that is charged, and MiB. The newest is last.
    pieces: [Vec<(Option<usize>, u64)>; PROCESSES],
}

impl Model {
    fn upwards(&self, group: usize) -> Vec<usize> {
        std::iter::successors(Some(group), |&group| self.parents[group]).collect()
    }

    fn nearest_limited(&self, group: usize) -> Option<usize> {
        self.upwards(group).into_iter().find(|group| self.limits.contains_key(group))
    }

    fn controlled(&self, group: usize) -> Option<usize> {
        let bare = self.upwards(group).into_iter().rfind(|&group| self.bare[group]);
        bare.map_or(Some(group), |bare| self.parents[bare])
    }

    fn used(&self, group: usize) -> u64 {
        let counts = |charged: usize| match self.wall {
            Wall::Dmem => self.upwards(charged).contains(&group),
            _ => charged == group,
        };
        let pieces = self.pieces.iter().flatten();
        pieces.filter(|(charged, _)| charged.is_some_and(counts)).map(|(_, size)| size).sum()
    }

    fn total(&self) -> u64 {
        self.pieces.iter().flatten().map(|(_, size)| size).sum()
    }

    fn take(&mut self, process: usize, size: u64) -> bool {
        let group = self.in_group[process];
        let (charged, bounds) = match self.wall {
            Wall::Dmem => (Some(group), self.upwards(group)),
            _ => {
                let nearest = self.nearest_limited(group);
                (nearest, nearest.into_iter().collect())
            }
        };
        let fits = |group: &usize| {
            self.limits.get(group).is_none_or(|&hard| self.used(*group) + size <= hard)
        };
        let granted = self.total() + size <= USABLE && bounds.iter().all(fits);
        if granted {
            let pieces = &mut self.pieces[process];
            match pieces.iter_mut().find(|(its, _)| *its == charged) {
                Some((_, held)) => *held += size,
                // Memory of no group is the oldest.
                None if charged.is_none() => pieces.insert(0, (charged, size)),
                None => pieces.push((charged, size)),
            }
        }
        granted
    }

    fn give(&mut self, process: usize, mut size: u64) {
        for (_, held) in self.pieces[process].iter_mut().rev() {
            let part = size.min(*held);
            *held -= part;
            size -= part;
        }
        self.pieces[process].retain(|(_, held)| *held != 0);
    }

    /// Returns `Err` for a refusal.
    fn limit(&mut self, group: usize, hard: Option<u64>) -> Result<(), ()> {
        match self.wall {
            Wall::Dmem if self.controlled(group) != Some(group) => return Err(()),
            Wall::Misc if hard.is_some_and(|hard| hard < self.used(group)) => return Err(()),
            Wall::Misc if hard.is_none() => {
                for pieces in &mut self.pieces {
                    let its = |piece: &(Option<usize>, u64)| piece.0 == Some(group);
                    let forgotten: u64 =
                        pieces.iter().filter(|piece| its(piece)).map(|(_, size)| size).sum();
                    pieces.retain(|piece| !its(piece));
                    match pieces.first_mut() {
                        Some((None, held)) => *held += forgotten,
                        _ if forgotten != 0 => pieces.insert(0, (None, forgotten)),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        match hard {
            Some(hard) => self.limits.insert(group, hard),
            None => self.limits.remove(&group),
        };
        Ok(())
    }

    fn visible(&self, process: usize) -> Option<(u64, u64)> {
        let group = self.in_group[process];
        let shown = match self.wall {
            Wall::Dmem => self.controlled(group),
            _ => self.nearest_limited(group),
        }?;
        self.limits.get(&shown).map(|&hard| (hard, self.used(shown)))
    }

    /// Ids, upwards.
    fn path(&self, group: usize) -> Vec<u64> {
        self.upwards(group).into_iter().map(|group| 100 + group as u64).collect()
    }
}

fn run(wall: Wall, parents: Vec<Option<usize>>, ops: &[Op]) {
    let (mut words, figures) = (Plain::new(WORDS), Figures { wall, ..Figures::default() });
    let mut timeline = Timeline::new(&mut words, &figures);
    timeline.install(0, Bytes(USABLE * MIB));
    let mut model = Model {
        wall,
        parents,
        limits: BTreeMap::new(),
        bare: [false; GROUPS],
        in_group: [0; PROCESSES],
        pieces: [const { Vec::new() }; PROCESSES],
    };
    (0..PROCESSES).for_each(|process| timeline.attach(process, 70));
    for op in ops {
        match *op {
            Op::Move { process, group } => model.in_group[process] = group,
            Op::Limit { group, hard } => {
                let limit = GroupLimit { soft: 0, hard: hard.map_or(u64::MAX, |hard| hard * MIB) };
                let set = timeline.limit_group(0, &model.path(group), limit);
                assert_eq!(model.limit(group, hard).is_ok(), set.is_ok(), "{op:?}: {set:?}");
            }
            Op::Controller { group, has } => {
                // Nothing is limited that has no files.
                let below = (0..GROUPS).filter(|&other| model.upwards(other).contains(&group));
                if wall != Wall::Dmem || below.into_iter().any(|g| model.limits.contains_key(&g)) {
                    continue;
                }
                timeline.set_controller(&model.path(group), has).unwrap();
                model.bare[group] = !has;
            }
            Op::Take { process, size } => {
                let path = model.path(model.in_group[process]);
                // A process in a container sees its own group alone; the ancestors are recorded.
                let seen = if timeline.known_groups().contains(&path[0]) { 1 } else { path.len() };
                timeline.join_group(process, &path[..seen]).unwrap();
                let taken = timeline.take_memory(process, 0, Bytes(size * MIB));
                let granted = model.take(process, size);
                assert_eq!(taken, if granted { Ok(()) } else { Err(Error::OutOfMemory) }, "{op:?}");
            }
            Op::Give { process, size } => {
                let held = model.pieces[process].iter().map(|(_, size)| size).sum();
                let size = size.min(held);
                timeline.give_memory(process, 0, Bytes(size * MIB));
                model.give(process, size);
            }
            Op::Exit { process } => {
                let now = timeline.now();
                timeline.detach(process, now);
                timeline.attach(process, 70);
                model.pieces[process].clear();
            }
        }
        timeline.check().unwrap();
        assert_eq!(timeline.memory(0).0, Bytes(model.total() * MIB));
        for group in 0..GROUPS {
            let expected = match wall {
                Wall::Dmem => model
                    .controlled(group)
                    .map(|group| (model.limits.get(&group).copied(), model.used(group)))
                    .or(Some((None, model.total()))),
                _ => model.limits.get(&group).map(|&hard| (Some(hard), model.used(group))),
            };
            let reported = timeline.group_limit(0, &model.path(group)).ok();
            let reported = reported.map(|(limit, used)| {
                ((limit.hard != u64::MAX).then_some(limit.hard / MIB), used.0 / MIB)
            });
            assert_eq!(reported, expected, "group {group} after {op:?}");
        }
        for process in 0..PROCESSES {
            timeline.join_group(process, &model.path(model.in_group[process])).unwrap();
            let visible = timeline.visible_limit(process, 0);
            let visible = visible.map(|(limit, used)| (limit.0 / MIB, used.0 / MIB));
            assert_eq!(visible, model.visible(process), "process {process} after {op:?}");
        }
    }
    (0..PROCESSES).for_each(|process| timeline.detach(process, timeline.now()));
    timeline.check().unwrap();
    assert!(timeline.group_uses(0).iter().all(|group| group.used == Bytes::ZERO));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn groups_are_charged_and_bounded_as_the_model_says(
        seeds in proptest::collection::vec(any::<u32>(), GROUPS),
        ops in proptest::collection::vec(op(), 1..60),
    ) {
        let parent = |(number, seed): (usize, &u32)| {
            // One in (number + 1) groups is below the root.
            (*seed as usize % (number + 1)).checked_sub(1)
        };
        let parents: Vec<Option<usize>> = seeds.iter().enumerate().map(parent).collect();
        for wall in [Wall::Dmem, Wall::Misc] {
            run(wall, parents.clone(), &ops);
        }
    }
}

#[test]
fn limits_of_many_groups_are_kept_and_their_records_reused() {
    for wall in [Wall::Dmem, Wall::Misc] {
        let (mut words, figures) = (Plain::new(WORDS), Figures { wall, ..Figures::default() });
        let mut timeline = Timeline::new(&mut words, &figures);
        let limit = GroupLimit { soft: 0, hard: MIB };
        for group in 2..1_000 {
            timeline.limit_group(0, &[group], limit).unwrap();
        }
        for group in 2..990 {
            timeline.limit_group(0, &[group], GroupLimit::NONE).unwrap();
        }
        for group in 1_000..1_900 {
            timeline.limit_group(1, &[group], limit).unwrap();
        }
        let limited = |gpu| timeline.group_uses(gpu).len();
        assert_eq!([limited(0), limited(1)], [10, 900]);
        let too_many =
            (1_900..2_300).find_map(|group| timeline.limit_group(1, &[group], limit).err());
        assert!(matches!(too_many, Some(Error::Full(_))));
    }
}
