//! The kubelet's socket: detects a new kubelet, and registers plugins.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cgpu_kubelet_api::device_plugin::registration_client::RegistrationClient;
use cgpu_kubelet_api::device_plugin::{DevicePluginOptions, RegisterRequest, VERSION};
use tonic::Status;
use tonic::transport::Endpoint;

use crate::resource::Resource;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn socket(folder: &Path) -> PathBuf {
    folder.join("kubelet.sock")
}

/// Identity of a file. Another file of the same path differs, even if it has the same inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Identity {
    /// Returns the identity of the file at `path`, if it exists.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// Returns the optional calls that the plugin serves.
pub(crate) fn options() -> DevicePluginOptions {
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

/// Registers a resource. Its socket must be served already: the kubelet connects at once.
pub(crate) async fn register(folder: &Path, resource: Resource) -> Result<(), Status> {
    let address = format!("unix://{}", socket(folder).display());
    let unreachable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    let endpoint = Endpoint::from_shared(address).map_err(unreachable)?;
    let channel = endpoint
        .connect_timeout(REQUEST_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        .connect()
        .await
        .map_err(unreachable)?;
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: resource.socket().to_owned(),
        resource_name: resource.name().to_owned(),
        options: Some(options()),
    };
    RegistrationClient::new(channel).register(request).await?;
    Ok(())
}
