//! Green contexts, which compute on a part of the GPU and allocate in the primary context.

pub(crate) mod table;

use cgpu_shm::units::DeviceIndex;

use self::table::Green;
use crate::contexts::table::Context;
use crate::handles::{ContextId, GreenId};
use crate::tables::part;

part!(
    /// The green contexts of this process.
    GreenContexts
);

impl GreenContexts<'_> {
    /// Records a green context of the GPU whose primary context is `whole`.
    pub fn made(self, id: GreenId, whole: Context) {
        let mut table = self.tables.green.lock();
        table.retain(|green| green.id != id);
        if table.try_reserve(1).is_ok() {
            table.push(Green { id, whole, handle: None });
        }
    }

    /// Records the green context's handle as a context. What is allocated in it is the primary
    /// context's.
    pub fn seen(self, id: GreenId, handle: ContextId) {
        let mut table = self.tables.green.lock();
        let Some(green) = table.iter_mut().find(|green| green.id == id) else { return };
        green.handle = Some(handle);
        self.tables.contexts.enter_view(handle.0, green.whole);
    }

    /// Returns the GPU of a green context.
    #[must_use]
    pub fn gpu(self, id: GreenId) -> Option<DeviceIndex> {
        self.tables.green.lock().iter().find(|green| green.id == id).map(|green| green.whole.gpu())
    }

    /// Removes a destroyed green context. What was allocated in it stays.
    pub fn destroyed(self, id: GreenId) {
        let mut table = self.tables.green.lock();
        let Some(index) = table.iter().position(|green| green.id == id) else { return };
        if let Some(handle) = table.swap_remove(index).handle {
            self.tables.contexts.leave_view(handle.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::doubles::{gpu, limited, used};
    use crate::{Address, Bytes, ContextId, GreenId};

    #[test]
    fn allocation_in_a_green_context_belongs_to_the_primary_context() {
        let (container, tenant) = limited(50);
        let (whole, view) = (container.handle(), container.handle());
        let context = tenant.contexts().adopt(whole, gpu());
        tenant.green_contexts().made(GreenId(8), context);
        tenant.green_contexts().seen(GreenId(8), view);
        assert_eq!(tenant.contexts().find(view), Some(context));
        assert_eq!(tenant.green_contexts().gpu(GreenId(8)), Some(gpu()));
        let charge = tenant.charge(gpu(), Bytes(512)).expect("it fits");
        charge.commit(Address(0x1000), tenant.contexts().find(view));
        tenant.green_contexts().destroyed(GreenId(8));
        assert_eq!(
            (tenant.contexts().find(view), tenant.green_contexts().gpu(GreenId(8))),
            (None, None)
        );
        assert_eq!(used(&tenant), Bytes(512));
        tenant.contexts().begin_destroy(whole).expect("known").destroyed();
        assert_eq!(used(&tenant), Bytes::ZERO);
        // The handle may be reused.
        let other = tenant.contexts().adopt(view, gpu());
        assert_ne!(other, context);
        assert_eq!(tenant.contexts().find(ContextId(view.0)), Some(other));
    }
}
