//! Two GPUs that take turns in a run.

use std::collections::BTreeMap;
use std::mem::swap;
use std::os::fd::OwnedFd;

use super::{Kind, Run};
use crate::model::Model;
use crate::oracle::Oracle;

/// State of the GPU whose turn it is not. The fields are those of [`Run`].
pub(super) struct Gpu {
    gpu: usize,
    model: Model,
    oracle: Oracle,
    exited: u64,
    exited_slack: u64,
    descriptors: BTreeMap<u32, (Kind, OwnedFd)>,
    exited_foreign: Vec<u32>,
}

impl Gpu {
    /// Creates the state. `dead`: the maximum that the ledger may have for exited processes.
    pub(super) fn new(gpu: usize, model: Model, oracle: Oracle, exited: u64) -> Self {
        let (descriptors, exited_foreign) = (BTreeMap::new(), Vec::new());
        Self { gpu, model, oracle, exited, exited_slack: 0, descriptors, exited_foreign }
    }

    pub(super) fn into_oracle(self) -> Oracle {
        self.oracle
    }
}

impl Run<'_> {
    /// Switches to the other GPU, if there is one.
    pub(super) fn turn(&mut self) {
        let Some(other) = &mut self.other else { return };
        swap(&mut self.gpu, &mut other.gpu);
        swap(&mut self.model, &mut other.model);
        swap(&mut self.oracle, &mut other.oracle);
        swap(&mut self.exited, &mut other.exited);
        swap(&mut self.exited_slack, &mut other.exited_slack);
        swap(&mut self.descriptors, &mut other.descriptors);
        swap(&mut self.exited_foreign, &mut other.exited_foreign);
    }

    /// Switches to the GPU on which a strict capture of this process is active: the capture forbids
    /// the thread other calls on each GPU.
    pub(super) fn turn_to_strict_capture(&mut self, index: usize) {
        if self.other.as_ref().is_some_and(|other| other.model.processes[index].drawn.is_strict()) {
            self.turn();
        }
    }

    /// Applies what happens to a whole process on each GPU, on the other one first.
    pub(super) fn on_each_gpu<T>(&mut self, mut happen: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let mut all = Vec::new();
        if self.other.is_some() {
            self.turn();
            all.push(happen(self));
            self.turn();
        }
        all.push(happen(self));
        all
    }
}
