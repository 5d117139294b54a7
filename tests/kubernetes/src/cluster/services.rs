//! What cluster DNS and kube-proxy do for the extender's Service: its name, and its address.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::lab::pass;

/// The address of the kubelets' `clusterDNS`.
const DNS: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 0, 1), 53);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The pods behind a Service, which serve at its port.
#[derive(Clone, Default)]
pub(super) struct Pods(Arc<Mutex<Vec<Ipv4Addr>>>);

impl Pods {
    pub(super) fn set(&self, addresses: Vec<Ipv4Addr>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    fn get(&self) -> Vec<Ipv4Addr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Answers look-ups of the name with the address, and passes connections to the address on to the
/// pods, in this network and until this process ends.
pub(super) fn serve(network: std::fs::File, name: &str, address: SocketAddr, pods: Pods) {
    let name = format!("{name}.cluster.local");
    let (sender, bound) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let own = LinkNameSpaceType::Network;
        move_into_link_name_space(network.as_fd(), Some(own)).expect("root, and a network");
        let dns = UdpSocket::bind(DNS).expect("the address of cluster DNS");
        let listener = TcpListener::bind(address).expect("the Service's address");
        sender.send(()).expect("a receiver");
        let SocketAddr::V4(service) = address else { panic!("an IPv4 address") };
        thread::spawn(move || answer(&dns, &name, *service.ip()));
        for client in listener.incoming().flatten() {
            let pods = pods.clone();
            thread::spawn(move || {
                let targets = pods.get().into_iter().map(|pod| (pod, address.port()).into());
                let connect =
                    |target: SocketAddr| TcpStream::connect_timeout(&target, CONNECT_TIMEOUT).ok();
                let Some(pod) = targets.into_iter().find_map(connect) else { return };
                let (Ok(to_client), Ok(to_pod)) = (client.try_clone(), pod.try_clone()) else {
                    return;
                };
                thread::spawn(move || pass(client, to_pod));
                pass(pod, to_client);
            });
        }
    });
    bound.recv().expect("a server of the Service");
}

/// Answers DNS questions: the name has this address and no other record, and no other name exists.
fn answer(socket: &UdpSocket, name: &str, address: Ipv4Addr) -> io::Result<()> {
    let mut buffer = [0; 512];
    loop {
        let (length, client) = socket.recv_from(&mut buffer)?;
        if let Some(reply) = reply(&buffer[..length], name, address) {
            socket.send_to(&reply, client)?;
        }
    }
}

fn reply(question: &[u8], name: &str, address: Ipv4Addr) -> Option<Vec<u8>> {
    let (head, body) = question.split_at_checked(12)?;
    let mut labels = Vec::new();
    let mut at = 0;
    loop {
        let length = usize::from(*body.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(body.get(at..at + length)?).to_lowercase());
        at += length;
    }
    let kind = body.get(at..at + 4)?;
    let is_known = labels.join(".") == name;
    let is_answered = is_known && kind == [0, 1, 0, 1];
    let mut reply = head.get(..2)?.to_vec();
    // A reply with authority; without an error, or: no such name.
    reply.extend([0x85, if is_known { 0x80 } else { 0x83 }]);
    reply.extend([0, 1, 0, u8::from(is_answered), 0, 0, 0, 0]);
    reply.extend(&body[..at + 4]);
    if is_answered {
        // The name of the question, an address, for five seconds.
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        reply.extend(address.octets());
    }
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_the_service_has_its_address() {
        let question = |name: &str, kind: u8| {
            let mut question = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            for label in name.split('.') {
                question.push(u8::try_from(label.len()).unwrap());
                question.extend(label.bytes());
            }
            question.extend([0, 0, kind, 0, 1]);
            reply(&question, "a.svc", Ipv4Addr::new(10, 0, 0, 9)).unwrap()
        };
        let found = question("a.svc", 1);
        assert_eq!((&found[..4], &found[6..8]), (&[7, 9, 0x85, 0x80][..], &[0, 1][..]));
        assert!(found.ends_with(&[0, 4, 10, 0, 0, 9]));
        // No address of version 6, and no such name.
        assert_eq!(question("A.svc", 28)[3..8], [0x80, 0, 1, 0, 0]);
        assert_eq!(question("b.svc", 1)[3..8], [0x83, 0, 1, 0, 0]);
        assert_eq!(reply(&[0; 13], "a.svc", Ipv4Addr::LOCALHOST), None);
    }
}
