//! Views of contexts: green contexts, which compute on a part of the GPU and allocate in the primary context.

use cgpu_shm::spin::Spin;
use cgpu_shm::units::DeviceIndex as Gpu;

use crate::{Context, ContextId, Tenant};

/// A green context as the driver names it (the `CUgreenCtx` pointer's value).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GreenId(pub usize);

/// The green contexts of a process. There are few: each holds some of a GPU's multiprocessors.
#[derive(Debug)]
pub(crate) struct Views(Spin<Vec<View>>);

#[derive(Clone, Copy, Debug)]
struct View {
    green: GreenId,
    /// The primary context.
    whole: Context,
    /// Its own handle as a context, once it was asked for.
    handle: Option<ContextId>,
}

impl Views {
    pub(crate) fn new() -> Self {
        Self(Spin::new(Vec::new()))
    }
}

impl Tenant {
    /// The driver made a green context of the GPU whose primary context this is.
    pub fn green_made(&self, green: GreenId, whole: Context) {
        let mut views = self.views.0.lock();
        views.retain(|view| view.green != green);
        if views.try_reserve(1).is_ok() {
            views.push(View { green, whole, handle: None });
        }
    }

    /// The driver named a green context as a context: what is allocated in that is the primary context's.
    pub fn green_seen(&self, green: GreenId, handle: ContextId) {
        let mut views = self.views.0.lock();
        let Some(view) = views.iter_mut().find(|view| view.green == green) else { return };
        view.handle = Some(handle);
        self.contexts.enter_view(handle.0, view.whole);
    }

    /// The GPU of a green context.
    #[must_use]
    pub fn green_gpu(&self, green: GreenId) -> Option<Gpu> {
        self.views.0.lock().iter().find(|view| view.green == green).map(|view| view.whole.gpu())
    }

    /// The driver destroyed a green context. What was allocated in it stays.
    pub fn green_gone(&self, green: GreenId) {
        let mut views = self.views.0.lock();
        let Some(place) = views.iter().position(|view| view.green == green) else { return };
        if let Some(handle) = views.swap_remove(place).handle {
            self.contexts.leave_view(handle.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::doubles::{Container, gpu};
    use crate::{Address, Bytes, ContextId, GreenId};

    #[test]
    fn what_is_allocated_in_a_view_is_the_primary_contexts() {
        let container = Container::limited(50);
        let tenant = container.tenant();
        let (whole, view) = (container.handle(), container.handle());
        let context = tenant.context_seen(whole, gpu());
        tenant.green_made(GreenId(8), context);
        tenant.green_seen(GreenId(8), view);
        assert_eq!(tenant.context(view), Some(context));
        assert_eq!(tenant.green_gpu(GreenId(8)), Some(gpu()));
        let charge = tenant.charge(gpu(), Bytes(512)).expect("it fits");
        charge.settle(Address(0x1000), tenant.context(view));
        tenant.green_gone(GreenId(8));
        assert_eq!((tenant.context(view), tenant.green_gpu(GreenId(8))), (None, None));
        assert_eq!(tenant.usage(gpu()).used, Bytes(512));
        tenant.context_leaving(whole).expect("known").gone();
        assert_eq!(tenant.usage(gpu()).used, Bytes::ZERO);
        // Its handle may be another context's.
        let other = tenant.context_seen(view, gpu());
        assert_ne!(other, context);
        assert_eq!(tenant.context(ContextId(view.0)), Some(other));
    }
}
