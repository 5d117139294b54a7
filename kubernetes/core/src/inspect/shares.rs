//! Tables with the compute of each GPU and pod.

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
    let mut states: Vec<String> = pod.walls.values().cloned().collect();
    states.dedup();
    if states.len() > 1 {
        states = pod.walls.iter().map(|(name, state)| format!("{name}:{state}")).collect();
    }
    let columns = [memory.collect::<Vec<_>>(), weights.collect(), percent.collect(), states];
    columns.map(|it| if it.is_empty() { "-".to_owned() } else { it.join(",") }).join("\t")
}
