//! Which pods of a node are evicted for a pod that is to be placed there.
//!
//! The scheduler evicts by the sums of a node. Here its victims are completed, and in part
//! replaced, so that the GPUs that the pod requests fit. `docs/internals/kubernetes.md` states the
//! rules.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use crate::accounting::{Holder, NodeAccounting};
use crate::budget::Budget;
use crate::gpus::NodeGpus;
use crate::placement;
use crate::pod_request::PodRequest;
use crate::reason::GpuCandidate;
use crate::resource_request::ResourceRequest;
use crate::share::Share;

/// Steps of the search on a node. It then has the best set that it has found.
const MAX_STEPS: usize = 1 << 14;

/// A pod for which others may be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Preemptor<'a> {
    /// Priority; victims have a lower one.
    pub priority: i32,
    /// What it requests.
    pub request: &'a ResourceRequest,
    /// Whether victims of the scheduler may be replaced: the pod has no rules about other pods, so
    /// only amounts have made them victims.
    pub may_replace: bool,
}

/// Victims that the scheduler has chosen on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Uids, the most important pod first.
    pub uids: Vec<String>,
    /// Evictions that budgets do not allow.
    pub violations: u64,
}

/// The result for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victims {
    /// Uids, the highest priority first.
    pub uids: Vec<String>,
    /// Evictions that budgets do not allow.
    pub violations: u64,
    /// Positions of the GPUs that the pod would get.
    pub gpus: Vec<usize>,
}

/// Returns the victims with which the pod fits, which may be none. `accounting` is without the
/// pod's own claim, and with what is reserved against it.
///
/// Returns `None` if no set of pods of lower priority suffices, or if the scheduler's victims have
/// no lower priority.
#[must_use]
pub fn choose(
    node: &NodeGpus,
    accounting: &NodeAccounting,
    preemptor: &Preemptor<'_>,
    given: &Given,
    budgets: &[Budget],
) -> Option<Victims> {
    let pods = Pods::of(node, accounting, preemptor, given, budgets)?;
    let request = preemptor.request;
    let best = match request.gpus {
        1 => {
            let runs = node.gpus.len().max(1);
            let each = (0..node.gpus.len())
                .filter_map(|gpu| Search::new(&pods, node, request, &[gpu], runs).run());
            each.min_by_key(|found| found.key())
        }
        _ => {
            let all: Vec<usize> = (0..node.gpus.len()).collect();
            Search::new(&pods, node, request, &all, 1).run()
        }
    }?;
    let is_victim = |uid: &str| {
        let position = pods.candidates.iter().position(|candidate| candidate.pod.uid == uid);
        position.is_some_and(|position| best.evicted[position])
    };
    let left = accounting.holders.iter().filter(|holder| !is_victim(&holder.pod.uid));
    let gpus = placement::choose(node, &NodeAccounting::sum(node, left), request).ok()?;
    let evicted = pods.candidates.iter().zip(&best.evicted).filter(|(_, evicted)| **evicted);
    let mut ranked: Vec<(i32, &str)> = evicted
        .map(|(candidate, _)| (candidate.pod.priority, candidate.pod.uid.as_str()))
        .collect();
    ranked.extend(pods.unknown.iter().map(|(priority, uid)| (*priority, *uid)));
    ranked.sort_by_key(|(priority, _)| Reverse(*priority));
    Some(Victims {
        uids: ranked.into_iter().map(|(_, uid)| uid.to_owned()).collect(),
        violations: best.cost.violations.saturating_add(pods.violations),
        gpus,
    })
}

/// A pod that may be evicted.
struct Candidate<'a> {
    pod: &'a PodRequest,
    parts: Vec<(usize, Share)>,
    /// Whether the scheduler has chosen it.
    given: bool,
    /// Whether it must be evicted.
    forced: bool,
    /// Positions of budgets that protect it.
    budgets: Vec<usize>,
}

/// The pods of a node, by what may happen to them.
struct Pods<'a> {
    /// In the order of the search: the scheduler's, then the others, the most important first.
    candidates: Vec<Candidate<'a>>,
    /// What all other pods hold.
    rest: Vec<Share>,
    /// Evictions that each budget allows.
    allowed: Vec<u64>,
    /// Victims of the scheduler that hold no GPU here, with a priority that keeps their order.
    unknown: Vec<(i32, &'a str)>,
    /// Evictions of those that budgets do not allow.
    violations: u64,
}

impl<'a> Pods<'a> {
    /// Returns `None` if a victim of the scheduler has no lower priority.
    fn of(
        node: &NodeGpus,
        accounting: &'a NodeAccounting,
        preemptor: &Preemptor<'_>,
        given: &'a Given,
        budgets: &[Budget],
    ) -> Option<Self> {
        let chosen: HashSet<&str> = given.uids.iter().map(String::as_str).collect();
        let is_here = |holder: &&Holder| holder.pod.bound.as_ref() == Some(&node.name);
        let (low, high): (Vec<&Holder>, Vec<&Holder>) = accounting
            .holders
            .iter()
            .partition(|it| is_here(it) && it.pod.priority < preemptor.priority);
        let is_chosen = |holder: &Holder| chosen.contains(holder.pod.uid.as_str());
        if high.iter().any(|it| is_chosen(it) && it.pod.priority >= preemptor.priority) {
            return None;
        }
        let budgets: Vec<&Budget> =
            budgets.iter().filter(|budget| low.iter().any(|it| budget.protects(&it.pod))).collect();
        let mut candidates: Vec<Candidate<'a>> = low
            .iter()
            .map(|holder| Candidate {
                pod: &holder.pod,
                parts: holder.parts(node),
                given: is_chosen(holder),
                forced: false,
                budgets: (0..budgets.len())
                    .filter(|budget| budgets[*budget].protects(&holder.pod))
                    .collect(),
            })
            .collect();
        let allowed: Vec<u64> = budgets.iter().map(|budget| budget.allowed()).collect();
        candidates.sort_by_cached_key(|candidate| {
            let eviction = &candidate.pod.eviction;
            let is_violation = candidate.budgets.iter().any(|budget| allowed[*budget] == 0);
            (
                !candidate.given,
                eviction.terminating,
                !is_violation,
                Reverse(candidate.pod.priority),
                eviction.created.clone(),
                candidate.pod.uid.clone(),
            )
        });
        let is_forced = |candidate: &Candidate<'_>| {
            let mut others = candidates.iter().filter(|other| !other.given);
            let replaceable = preemptor.may_replace
                && !candidate.pod.eviction.fixed
                && others.any(|other| other.pod.eviction.covers(&candidate.pod.eviction));
            candidate.given && !replaceable
        };
        let forced: Vec<bool> = candidates.iter().map(is_forced).collect();
        for (candidate, forced) in candidates.iter_mut().zip(forced) {
            candidate.forced = forced;
        }
        let known: HashMap<&str, i32> =
            low.iter().map(|holder| (holder.pod.uid.as_str(), holder.pod.priority)).collect();
        let mut last = preemptor.priority.saturating_sub(1);
        let mut unknown = Vec::new();
        for uid in &given.uids {
            match known.get(uid.as_str()) {
                Some(priority) => last = *priority,
                None => unknown.push((last, uid.as_str())),
            }
        }
        let mut pods = Self {
            candidates,
            rest: NodeAccounting::sum(node, high).held,
            allowed,
            unknown,
            violations: 0,
        };
        let of_known = pods.violations(|candidate| candidate.given);
        pods.violations = given.violations.saturating_sub(of_known);
        Some(pods)
    }

    /// Returns how many evictions of these pods the budgets do not allow.
    fn violations(&self, is_evicted: impl Fn(&Candidate<'_>) -> bool) -> u64 {
        let mut hits = vec![0; self.allowed.len()];
        for candidate in self.candidates.iter().filter(|candidate| is_evicted(candidate)) {
            count(&mut hits, candidate);
        }
        over(&hits, &self.allowed)
    }
}

/// Counts an eviction, unless it has begun already.
fn count(hits: &mut [u64], candidate: &Candidate<'_>) {
    if !candidate.pod.eviction.terminating {
        candidate.budgets.iter().for_each(|budget| hits[*budget] += 1);
    }
}

fn over(hits: &[u64], allowed: &[u64]) -> u64 {
    hits.iter().zip(allowed).map(|(hits, allowed)| hits.saturating_sub(*allowed)).sum()
}

/// What a set of victims costs; a pod that is being deleted already costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    violations: u64,
    /// Highest priority among the victims.
    highest: Option<i32>,
    count: usize,
}

/// A set of victims with which the pod fits.
struct Found {
    cost: Cost,
    /// Of each candidate, whether it is evicted.
    evicted: Vec<bool>,
}

impl Found {
    /// Returns a key that is the smaller, the better the set is: of equal costs, that of the less
    /// important pods.
    fn key(&self) -> (Cost, Vec<bool>) {
        (self.cost, self.evicted.clone())
    }
}

/// A search over the subsets of the candidates. It decides one after the other: the scheduler's
/// victims are evicted first and kept later, the others kept first and evicted later. So the first
/// set that it finds is the greedy one, and of equal sets the first one is the least important.
struct Search<'a> {
    pods: &'a Pods<'a>,
    node: &'a NodeGpus,
    request: &'a ResourceRequest,
    /// Positions of the GPUs that it may have.
    targets: Vec<usize>,
    steps: usize,
    best: Option<Found>,
}

/// The decisions so far.
#[derive(Clone)]
struct State {
    evicted: Vec<bool>,
    /// What is held by pods that stay.
    held: Vec<Share>,
    hits: Vec<u64>,
    cost: Cost,
}

impl<'a> Search<'a> {
    fn new(
        pods: &'a Pods<'a>,
        node: &'a NodeGpus,
        request: &'a ResourceRequest,
        targets: &[usize],
        runs: usize,
    ) -> Self {
        let is_permitted = |gpu: &&usize| request.rules.permit(&node.gpus[**gpu]);
        let targets = targets.iter().filter(is_permitted).copied().collect();
        Self { pods, node, request, targets, steps: MAX_STEPS / runs, best: None }
    }

    fn run(mut self) -> Option<Found> {
        let count = self.pods.candidates.len();
        let state = State {
            evicted: Vec::with_capacity(count),
            held: self.pods.rest.clone(),
            hits: vec![0; self.pods.allowed.len()],
            cost: Cost::default(),
        };
        if self.node.closed.is_none() && self.fits(&state.held) {
            self.decide(state);
        }
        self.best
    }

    /// Returns whether as many GPUs fit as the pod requests.
    fn fits(&self, held: &[Share]) -> bool {
        let fits = |gpu: &&usize| {
            GpuCandidate::of(&self.node.gpus[**gpu], **gpu, held[**gpu], self.request).fits()
        };
        self.targets.iter().filter(fits).count() >= self.request.gpus
    }

    fn decide(&mut self, state: State) {
        let is_worse = |best: &Found| state.cost >= best.cost;
        // The first descent always ends, so that there is a result.
        if self.best.is_some() && self.steps == 0 || self.best.as_ref().is_some_and(is_worse) {
            return;
        }
        self.steps = self.steps.saturating_sub(1);
        let Some(candidate) = self.pods.candidates.get(state.evicted.len()) else {
            if self.is_replacement(&state.evicted) {
                self.best = Some(Found { cost: state.cost, evicted: state.evicted });
            }
            return;
        };
        if candidate.given {
            self.evict(state.clone(), candidate);
            if !candidate.forced {
                self.keep(state, candidate);
            }
        } else {
            self.keep(state.clone(), candidate);
            // Another pod is evicted for its part of a GPU.
            if candidate.parts.iter().any(|(gpu, _)| self.targets.contains(gpu)) {
                self.evict(state, candidate);
            }
        }
    }

    fn keep(&mut self, mut state: State, candidate: &Candidate<'_>) {
        for (gpu, share) in &candidate.parts {
            if let Some(sum) = state.held.get_mut(*gpu) {
                *sum = sum.and(*share);
            }
        }
        state.evicted.push(false);
        if self.fits(&state.held) {
            self.decide(state);
        }
    }

    fn evict(&mut self, mut state: State, candidate: &Candidate<'_>) {
        if !candidate.pod.eviction.terminating {
            count(&mut state.hits, candidate);
            let highest = state.cost.highest.max(Some(candidate.pod.priority));
            let violations = over(&state.hits, &self.pods.allowed);
            state.cost = Cost { violations, highest, count: state.cost.count + 1 };
        }
        state.evicted.push(true);
        self.decide(state);
    }

    /// Returns whether each victim of the scheduler that stays is replaced by a pod of its own.
    fn is_replacement(&self, evicted: &[bool]) -> bool {
        let candidates = &self.pods.candidates;
        let of = |given: bool, is_evicted: bool| -> Vec<&PodRequest> {
            let all = candidates.iter().zip(evicted);
            let those = all.filter(|(it, evicted)| it.given == given && **evicted == is_evicted);
            those.map(|(candidate, _)| candidate.pod).collect()
        };
        let (stay, others) = (of(true, false), of(false, true));
        let mut taken: Vec<Option<usize>> = vec![None; others.len()];
        (0..stay.len()).all(|one| {
            is_matched(one, &mut vec![false; others.len()], &mut taken, &|one, other| {
                others[other].eviction.covers(&stay[one].eviction)
            })
        })
    }
}

/// Finds a pod for `one` that `covers` it; pods that were found before get others if need be.
fn is_matched(
    one: usize,
    tried: &mut [bool],
    taken: &mut [Option<usize>],
    covers: &impl Fn(usize, usize) -> bool,
) -> bool {
    for other in 0..taken.len() {
        if tried[other] || !covers(one, other) {
            continue;
        }
        tried[other] = true;
        if taken[other].is_none_or(|before| is_matched(before, tried, taken, covers)) {
            taken[other] = Some(one);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests;
