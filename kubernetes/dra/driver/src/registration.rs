//! The registration of the driver. The kubelet finds its socket, and calls.

use std::path::PathBuf;

use cgpu_kubelet_api::registration::registration_server::Registration;
use cgpu_kubelet_api::registration::{
    DRA_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use cgpu_kubelet_api::{dra, dra_health};
use cgpu_kubernetes_dra::DRIVER;
use tonic::{Request, Response, Status};
use tracing::{error, info};

pub(crate) struct Registrar {
    /// Socket of the driver's services.
    pub(crate) endpoint: PathBuf,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: DRA_PLUGIN.to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: [dra::SERVICE, dra_health::SERVICE].map(str::to_owned).into(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            info!("registered");
        } else {
            // The kubelet tries again by itself.
            error!("the kubelet does not accept the driver: {error}");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
