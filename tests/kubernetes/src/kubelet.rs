//! The kubelet, as far as a device plugin speaks to it.
