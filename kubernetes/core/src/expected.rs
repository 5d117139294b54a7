//! Pods that filter has answered, and whose node no object shows yet. Each counts as somewhere
//! among the nodes that it was answered. That orders nodes for other pods and refuses none.

use std::collections::{HashMap, VecDeque};

use crate::cluster::Cluster;
use crate::pod_request::PodRequest;

/// How long a pod counts, in nanoseconds: longer than a scheduler takes from filter to bind.
const DEADLINE: u64 = 5_000_000_000;

/// Most pods that count, the last ones. A scheduler places one after the other.
const MAX_PODS: usize = 32;

/// What a pod is expected to add to each node, in thousandths of a unit.
#[derive(Debug)]
struct Expected {
    uid: String,
    nodes: Vec<String>,
    each: u64,
    until: u64,
}

/// The pods, in the order of their filters.
#[derive(Debug, Default)]
pub struct ExpectedPods(VecDeque<Expected>);

impl ExpectedPods {
    /// Notes that a pod was answered these nodes, in place of those before. `now` is in
    /// nanoseconds.
    pub fn answered(&mut self, pod: &PodRequest, nodes: &[String], cluster: &Cluster, now: u64) {
        self.0.retain(|expected| expected.uid != pod.uid && now < expected.until);
        let Ok(request) = pod.resource_request() else { return };
        let node = nodes.first().and_then(|name| cluster.node(name));
        let units = node.map_or(0, |(node, _)| request.units_on(node));
        let Some(each) = units.saturating_mul(1000).checked_div(nodes.len() as u64) else { return };
        if self.0.len() == MAX_PODS {
            self.0.pop_front();
        }
        let (uid, until) = (pod.uid.clone(), now.saturating_add(DEADLINE));
        self.0.push_back(Expected { uid, nodes: nodes.to_vec(), each, until });
    }

    /// Returns the thousandths of units that other pods are expected to take of each node. Pods
    /// that were claimed, bound or deleted meanwhile do not count.
    #[must_use]
    pub fn beside(&self, uid: &str, cluster: &Cluster, now: u64) -> HashMap<&str, u64> {
        let counts = |expected: &&Expected| {
            let pod = cluster.pod(&expected.uid);
            expected.uid != uid
                && now < expected.until
                && pod.is_some_and(|pod| pod.node().is_none() && pod.nominated.is_none())
        };
        let mut sums: HashMap<&str, u64> = HashMap::new();
        for expected in self.0.iter().filter(counts) {
            for node in &expected.nodes {
                let sum = sums.entry(node).or_default();
                *sum = sum.saturating_add(expected.each);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extender::{Candidates, prioritize};
    use crate::fixture::{node, sharing};
    use crate::gpus::Placement;
    use crate::names::Dialects;
    use crate::object::Pod;

    fn request(pod: &Pod) -> PodRequest {
        PodRequest::of(pod, Dialects::default()).unwrap()
    }

    /// Of 14 units each, 4 are held on n1. In a second the scheduler has called filter for `a`.
    #[test]
    fn node_that_another_pod_may_fill_comes_behind_the_others() {
        let nodes = ["n1", "n2", "n3"].map(|name| node(name, "GiB", &[15109]));
        let names: Vec<String> = ["n1", "n2", "n3"].map(str::to_owned).into();
        let (a, b) = (sharing("a", 9), sharing("b", 9));
        let mut on_n1 = sharing("c", 4);
        on_n1.spec.node_name = "n1".into();
        on_n1.metadata.annotations = crate::fixture::texts(&[("ALIYUN_COM_GPU_MEM_IDX", "0")]);
        let mut cluster = Cluster::new(Dialects::default());
        cluster.replace(&nodes, [&a, &b, &on_n1]);
        let mut expected = ExpectedPods::default();
        let scores = |expected: &ExpectedPods, cluster: &Cluster, now| {
            let candidates =
                Candidates { pod: Some(b.clone()), nodes: None, node_names: Some(names.clone()) };
            let beside = expected.beside(&b.metadata.uid, cluster, now);
            let ranked = prioritize(cluster, &candidates, Placement::Binpack, &beside);
            ranked.into_iter().map(|priority| priority.score).collect::<Vec<u64>>()
        };
        assert_eq!(scores(&expected, &cluster, 1), [10, 0, 0]);
        expected.answered(&request(&a), &names, &cluster, 1);
        // 3 units of 9 may come to each: n1 has 10, the others 14.
        assert_eq!(scores(&expected, &cluster, 1), [4, 5, 5]);
        assert_eq!(scores(&expected, &cluster, 1 + DEADLINE), [10, 0, 0], "past its deadline");
        expected.answered(&request(&a), &names[1..], &cluster, 1);
        assert_eq!(scores(&expected, &cluster, 1), [10, 0, 0], "a new filter, without n1");
        expected.answered(&request(&a), &names, &cluster, 1);
        expected.answered(&request(&b), &names, &cluster, 1);
        assert_eq!(scores(&expected, &cluster, 1), [4, 5, 5], "not the pod itself");
        cluster.delete_pod(&a.metadata.uid);
        assert_eq!(scores(&expected, &cluster, 1), [10, 0, 0], "it was deleted");
    }

    #[test]
    fn last_pods_count() {
        let pods: Vec<Pod> = (0..40).map(|number| sharing(&format!("p{number}"), 2)).collect();
        let mut cluster = Cluster::new(Dialects::default());
        cluster.replace(&[node("n", "GiB", &[15109])], &pods);
        let mut expected = ExpectedPods::default();
        for pod in &pods {
            expected.answered(&request(pod), &["n".to_owned()], &cluster, 1);
            expected.answered(&request(pod), &[], &cluster, 1);
        }
        assert_eq!(expected.beside("", &cluster, 1).len(), 0);
        for pod in &pods {
            expected.answered(&request(pod), &["n".to_owned()], &cluster, 1);
        }
        assert_eq!(expected.beside("", &cluster, 1)["n"], 32 * 2000);
    }
}
