//! Tables with the compute of each GPU and pod.

use cgpu_text::wall;

use super::{Overview, PodView};
use crate::tabs::aligned;

pub(super) fn of(overview: &Overview, details: bool) -> String {
    let mut text = "NODE\tGPU\tMEMORY(Allocated/Total)\tWEIGHT\tCORES(%)\tSHARES\n".to_owned();
    for node in overview.shared() {
        for gpu in &node.gpus {
            text += &format!(
                "{}\t{}\t{}/{}\t{}\t{}\t{}\n",
                node.name,
                gpu.index,
                gpu.allocated,
                gpu.total,
                gpu.weight,
                gpu.percent,
                gpu.containers
            );
        }
    }
    if !details {
        return aligned(&text);
    }
    let mut pods = "POD\tNAMESPACE\tNODE\tMEMORY(GPU:Units)\tWEIGHT\tCORES(%)\tWALL\n".to_owned();
    for node in overview.shared() {
        for pod in &node.pods {
            pods += &format!("{}\t{}\t{}\t{}\n", pod.name, pod.namespace, node.name, row(pod));
        }
    }
    format!("{}\n{}", aligned(&text), aligned(&pods))
}

/// Returns the columns of a pod: its GPUs, the weights of its containers, its percentage of each
/// GPU, and what holds the containers' memory limits.
fn row(pod: &PodView) -> String {
    let held = || pod.units.iter().zip(&pod.percent).enumerate().filter(|(_, it)| *it.0 > 0);
    let memory = held().map(|(gpu, (units, _))| format!("{gpu}:{units}"));
    let percent = held().map(|(_, (_, percent))| percent.to_string());
    let weights = pod.weights.iter().map(u32::to_string);
    let columns = [memory.collect::<Vec<_>>(), weights.collect(), percent.collect()];
    let [memory, weights, percent] =
        columns.map(|it| if it.is_empty() { "-".to_owned() } else { it.join(",") });
    [memory, weights, percent, walls(pod)].join("\t")
}

/// Returns what holds the limits of a pod's containers; where they differ, each by its name.
fn walls(pod: &PodView) -> String {
    let held = |(name, state): (&String, &String)| {
        let reason = pod.wall_reasons.get(name).map(String::as_str);
        (name.clone(), wall::held_by(state, reason))
    };
    let all: Vec<(String, String)> = pod.walls.iter().map(held).collect();
    match all.as_slice() {
        [] => "-".to_owned(),
        [(_, first), others @ ..] if others.iter().all(|(_, other)| other == first) => {
            first.clone()
        }
        _ => {
            let named = all.iter().map(|(name, held)| format!("{name}: {held}"));
            named.collect::<Vec<_>>().join("; ")
        }
    }
}
