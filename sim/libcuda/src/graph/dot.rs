//! Descriptions of graphs for Graphviz.

use core::fmt::Write as _;

use cgpu_abi::types::*;

use super::node::Body;
use super::{Graphs, order};
use crate::answer::{Answer, UNKNOWN};
use crate::argument::In;
use crate::call::Call;
use crate::driver::Driver;
use crate::function;

fn label(driver: &Driver, body: &Body, handle: CUgraphNode, flags: c_uint) -> String {
    let mut label = body.name().to_owned();
    if let Body::Kernel(kernel) = body
        && let Ok(function) = function::find(driver, kernel.function)
    {
        let name = function.name.to_string_lossy().replace(['"', '\\'], "_");
        let _ = write!(label, "\\n{name}");
    }
    if flags & CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE != 0 {
        match body {
            Body::Kernel(kernel) => {
                let _ = write!(label, "\\n{:?} x {:?}", kernel.shape.grid, kernel.shape.block);
            }
            Body::Copy(copying) => {
                let _ = write!(label, "\\n{:?}", copying.extent);
            }
            Body::Fill(node) => {
                let _ = write!(label, "\\n{} x {}", node.fill.elements, node.fill.rows);
            }
            Body::Allocate(reservation) => {
                let _ = write!(label, "\\n{:#x}: {}", reservation.first, reservation.bytes);
            }
            Body::Free(address) => {
                let _ = write!(label, "\\n{address:#x}");
            }
            _ => {}
        }
    }
    if flags & (CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES | CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE) != 0 {
        let _ = write!(label, "\\n{:#x}", handle.0);
    }
    label
}

fn describe(
    driver: &Driver,
    graphs: &Graphs,
    graph: CUgraph,
    flags: c_uint,
    text: &mut String,
) -> Answer {
    let source = graphs.graph(graph)?;
    let _ = writeln!(text, "subgraph cluster_{} {{\nlabel=\"graph_{}\"", source.id, source.id);
    let in_order =
        order::sorted(&source.nodes).unwrap_or_else(|_| source.nodes.keys().copied().collect());
    for handle in in_order {
        let Some(node) = source.nodes.get(&handle) else { continue };
        let name = |number: u32| format!("\"graph_{}_node_{number}\"", source.id);
        let _ = writeln!(
            text,
            "{} [shape=\"box\" label=\"{}\"];",
            name(node.number),
            label(driver, &node.body, handle, flags)
        );
        for from in node.dependencies.iter().filter_map(|edge| source.nodes.get(&edge.from)) {
            let _ = writeln!(text, "{} -> {};", name(from.number), name(node.number));
        }
        for part in node.body.parts() {
            describe(driver, graphs, part, flags, text)?;
        }
    }
    text.push_str("}\n");
    Ok(())
}

pub(crate) fn cuGraphDebugDotPrint(
    call: &Call,
    graph: CUgraph,
    path: In<c_char>,
    flags: c_uint,
) -> Answer {
    let driver = call.driver()?;
    let path = path.text()?;
    let mut text = "digraph dot {\n".to_owned();
    describe(driver, &Graphs::of(driver), graph, flags, &mut text)?;
    text.push_str("}\n");
    std::fs::write(path, text).map_err(|_| UNKNOWN)
}
