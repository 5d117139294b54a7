//! Graphs that allocate.

use anyhow::{Result, bail};

use crate::actor::{Actor, NOT_OURS};
use crate::driver::place;
use crate::records::{AllocationNode, DEVICE, GRAPHS_RESERVED, PINNED};

impl Actor {
    /// Creates an executable graph that allocates all of the sizes, then frees them.
    pub(crate) fn create_graph(&mut self, context: u32, name: u32, sizes: &[u64]) -> Result<i32> {
        let code = self.enter(context)?;
        if code != 0 {
            return Ok(code);
        }
        self.graphing = true;
        let (mut graph, mut executable) = (0_usize, 0_usize);
        let code = self.cuda.call(c"cuGraphCreate", [place(&mut graph), 0])?;
        if code != 0 {
            return Ok(code);
        }
        let mut code = self.add_nodes(graph, sizes)?;
        if code == 0 {
            code = self
                .cuda
                .call(c"cuGraphInstantiateWithFlags", [place(&mut executable), graph, 0])?;
        }
        if code == 0 {
            self.graphs.insert(name, (context, executable));
        }
        match self.cuda.call(c"cuGraphDestroy", [graph])? {
            0 => Ok(code),
            code => bail!("cuGraphDestroy answered {code}"),
        }
    }

    fn add_nodes(&self, graph: usize, sizes: &[u64]) -> Result<i32> {
        let (mut nodes, mut addresses) = (Vec::<usize>::new(), Vec::new());
        for &size in sizes {
            let (kind, location, id) = (PINNED, DEVICE, self.id()?);
            let bytes = usize::try_from(size)?;
            let mut wanted =
                AllocationNode { kind, location, id, bytes, ..AllocationNode::default() };
            let mut node = 0_usize;
            let (after, count) = (nodes.as_ptr().expose_provenance(), nodes.len());
            let arguments = [place(&mut node), graph, after, count, place(&mut wanted)];
            let code = self.cuda.call(c"cuGraphAddMemAllocNode", arguments)?;
            if code != 0 {
                return Ok(code);
            }
            nodes = vec![node];
            addresses.push(wanted.address);
        }
        for address in addresses {
            let mut node = 0_usize;
            let after = nodes.as_ptr().expose_provenance();
            let arguments = [place(&mut node), graph, after, 1, usize::try_from(address)?];
            let code = self.cuda.call(c"cuGraphAddMemFreeNode", arguments)?;
            if code != 0 {
                return Ok(code);
            }
            nodes = vec![node];
        }
        Ok(0)
    }

    pub(crate) fn launch_graph(&self, name: u32) -> Result<i32> {
        let Some(&(context, executable)) = self.graphs.get(&name) else { return Ok(NOT_OURS) };
        match self.enter(context)? {
            0 => self.cuda.call(c"cuGraphLaunch", [executable, 0]),
            code => Ok(code),
        }
    }

    pub(crate) fn destroy_graph(&mut self, name: u32) -> Result<i32> {
        let Some((_, executable)) = self.graphs.remove(&name) else { return Ok(NOT_OURS) };
        self.cuda.call(c"cuGraphExecDestroy", [executable])
    }

    pub(crate) fn trim_graphs(&self) -> Result<i32> {
        self.cuda.call(c"cuDeviceGraphMemTrim", [self.device])
    }

    /// Returns the bytes that the GPU has reserved for graphs.
    pub(crate) fn reserved_for_graphs(&self) -> Result<u64> {
        let mut reserved = 0_u64;
        let to = [self.device, GRAPHS_RESERVED, place(&mut reserved)];
        match self.cuda.call(c"cuDeviceGetGraphMemAttribute", to)? {
            0 => Ok(reserved),
            code => bail!("cuDeviceGetGraphMemAttribute answered {code}"),
        }
    }
}
