//! Who comes and says that it is a plugin, and what it says after that.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream;
use http::uri::PathAndQuery;
use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::wire::{Devices, Empty, LONGEST, Options, Register};
use super::{Shared, locked};

/// How long a plugin may take to let itself be connected to.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn serve(listener: UnixListener, folder: PathBuf, shared: Shared) {
    let service = service_fn(move |request: http::Request<Body>| {
        let (folder, shared) = (folder.clone(), Shared::clone(&shared));
        async move {
            let answer = service_fn(move |request: Request<Register>| {
                let (folder, shared) = (folder.clone(), Shared::clone(&shared));
                async move { register(&folder, shared, request.into_inner()).map(Response::new) }
            });
            Ok::<_, Infallible>(match request.uri().path() {
                "/v1beta1.Registration/Register" => {
                    Grpc::new(ProstCodec::<Empty, Register>::default()).unary(answer, request).await
                }
                other => Status::unimplemented(other).into_http(),
            })
        }
    });
    let accepted = stream::unfold(listener, |listener| async move {
        let stream = listener.accept().await.map(|(stream, _)| stream);
        Some((stream, listener))
    });
    Server::builder().serve_with_incoming(service, accepted).await.expect("a server");
}

fn register(folder: &Path, shared: Shared, request: Register) -> Result<Empty, Status> {
    if request.version != "v1beta1" {
        return Err(Status::invalid_argument(format!("version {} is not served", request.version)));
    }
    if !request.resource_name.contains('/') {
        return Err(Status::invalid_argument(format!("{} is no extended resource", request.resource_name)));
    }
    if request.endpoint.contains('/') {
        return Err(Status::invalid_argument(format!("{} is no name of a socket", request.endpoint)));
    }
    let socket = folder.join(&request.endpoint);
    // As the real one: the answer does not wait for the connection.
    tokio::spawn(async move {
        if let Err(status) = listen(&socket, &shared, &request).await {
            let mut manager = locked(&shared);
            manager.complaints.push(format!(
                "{}: {:?}: {}",
                request.resource_name,
                status.code(),
                status.message()
            ));
        }
    });
    Ok(Empty {})
}

/// Listens to a plugin until it falls silent.
async fn listen(socket: &Path, shared: &Shared, request: &Register) -> Result<(), Status> {
    let unreachable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    let address = format!("unix://{}", socket.display());
    let endpoint = Endpoint::from_shared(address).map_err(unreachable)?.connect_timeout(PATIENCE);
    let channel = endpoint.connect().await.map_err(unreachable)?;
    let mut client = client(&channel);
    client.ready().await.map_err(unreachable)?;
    let options: Options =
        client.unary(Request::new(Empty {}), path("GetDevicePluginOptions"), codec()).await?.into_inner();
    let told = request.options.clone().unwrap_or_default();
    if told != options {
        return Err(Status::internal(format!("options are {told:?} and {options:?}")));
    }
    if options.pre_start_required {
        return Err(Status::internal("not played: PreStartContainer"));
    }
    let number = locked(shared).register(
        &request.resource_name,
        channel.clone(),
        options.get_preferred_allocation_available,
    );
    client.ready().await.map_err(unreachable)?;
    let listed = client
        .server_streaming(Request::new(Empty {}), path("ListAndWatch"), codec::<Empty, Devices>())
        .await;
    let outcome = match listed {
        Ok(response) => {
            let mut devices = response.into_inner();
            loop {
                match devices.message().await {
                    Ok(Some(message)) => {
                        let devices = message.devices.into_iter().map(|device| (device.id, device.health));
                        locked(shared).tell(&request.resource_name, number, devices)?;
                    }
                    Ok(None) => break Ok(()),
                    Err(status) => break Err(status),
                }
            }
        }
        Err(status) => Err(status),
    };
    locked(shared).fall_silent(&request.resource_name, number);
    outcome
}

pub(crate) fn client(channel: &Channel) -> tonic::client::Grpc<Channel> {
    tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(LONGEST)
}

pub(crate) fn path(call: &str) -> PathAndQuery {
    format!("/v1beta1.DevicePlugin/{call}").parse().expect("a path")
}

pub(crate) fn codec<M, R>() -> ProstCodec<M, R> {
    ProstCodec::default()
}
