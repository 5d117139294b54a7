//! The registration of plugins and the lists of their devices.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cgpu_kubelet_api::device_plugin::device_plugin_client::DevicePluginClient;
use cgpu_kubelet_api::device_plugin::registration_server::{Registration, RegistrationServer};
use cgpu_kubelet_api::device_plugin::{Empty, RegisterRequest, VERSION};
use futures_util::stream;
use tokio::net::UnixListener;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use super::{Shared, locked};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of the longest message that the real kubelet accepts.
const LONGEST: usize = 4_194_304;

struct Registrar {
    folder: PathBuf,
    shared: Shared,
}

pub(crate) async fn serve(listener: UnixListener, folder: PathBuf, shared: Shared) {
    let accepted = stream::unfold(listener, |listener| async move {
        let stream = listener.accept().await.map(|(stream, _)| stream);
        Some((stream, listener))
    });
    let service = RegistrationServer::new(Registrar { folder, shared });
    Server::builder().serve_with_incoming(service, accepted).await.expect("a server");
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        if request.version != VERSION {
            return Err(Status::invalid_argument(format!(
                "version {} is not served",
                request.version
            )));
        }
        if !request.resource_name.contains('/') {
            let message = format!("{} is no extended resource", request.resource_name);
            return Err(Status::invalid_argument(message));
        }
        if request.endpoint.contains('/') {
            return Err(Status::invalid_argument(format!(
                "{} is no name of a socket",
                request.endpoint
            )));
        }
        let (socket, shared) = (self.folder.join(&request.endpoint), Shared::clone(&self.shared));
        // As the real kubelet: the answer does not wait for the connection.
        tokio::spawn(async move {
            if let Err(status) = listen(&socket, &shared, &request).await {
                let (code, message) = (status.code(), status.message());
                let complaint = format!("{}: {code:?}: {message}", request.resource_name);
                locked(&shared).complaints.push(complaint);
            }
        });
        Ok(Response::new(Empty {}))
    }
}

async fn listen(socket: &Path, shared: &Shared, request: &RegisterRequest) -> Result<(), Status> {
    let unreachable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    let address = format!("unix://{}", socket.display());
    let endpoint =
        Endpoint::from_shared(address).map_err(unreachable)?.connect_timeout(CONNECT_TIMEOUT);
    let channel = endpoint.connect().await.map_err(unreachable)?;
    let mut client = client(&channel);
    let options = client.get_device_plugin_options(Empty {}).await?.into_inner();
    let registered = request.options.unwrap_or_default();
    if registered != options {
        return Err(Status::internal(format!("options are {registered:?} and {options:?}")));
    }
    if options.pre_start_required {
        return Err(Status::internal("PreStartContainer is not emulated"));
    }
    let number = locked(shared).register(
        &request.resource_name,
        channel.clone(),
        options.get_preferred_allocation_available,
    );
    let outcome = match client.list_and_watch(Empty {}).await {
        Ok(response) => {
            let mut devices = response.into_inner();
            loop {
                match devices.message().await {
                    Ok(Some(message)) => {
                        let devices =
                            message.devices.into_iter().map(|device| (device.id, device.health));
                        locked(shared).update(&request.resource_name, number, devices)?;
                    }
                    Ok(None) => break Ok(()),
                    Err(status) => break Err(status),
                }
            }
        }
        Err(status) => Err(status),
    };
    locked(shared).mark_unhealthy(&request.resource_name, number);
    outcome
}

pub(crate) fn client(channel: &Channel) -> DevicePluginClient<Channel> {
    DevicePluginClient::new(channel.clone()).max_decoding_message_size(LONGEST)
}
