//! DNS for the inside: allowed names only, addresses only, never anything passed on.

use crate::audit::Subject;
use crate::gateway::{Gateway, Ticket};
use crate::names::{PINNED, Refusal};
use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use skep_policy::egress::{Name, Verdict, reason};
use skep_types::EgressPeer;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;

/// Questions worked on at the same time; more are dropped, and asked again by whoever cares.
const MOST_AT_ONCE: usize = 64;
/// A question is small.
const MOST_QUESTION: usize = 4096;

/// Answers questions on a UDP socket until it fails for good.
pub(crate) async fn serve_udp(gateway: Arc<Gateway>, socket: Arc<UdpSocket>) {
    let room = Arc::new(Semaphore::new(MOST_AT_ONCE));
    let mut buffer = vec![0; MOST_QUESTION];
    let Ok(here) = socket.local_addr() else { return };
    loop {
        let Ok((count, from)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let question = buffer[..count].to_vec();
        let (gateway, socket) = (gateway.clone(), socket.clone());
        // Nearly everybody asks whom `/etc/resolv.conf` names; of others only the port is known.
        let asker = EgressPeer { udp: true, local: from, remote: here };
        tokio::spawn(async move {
            let exec = gateway.owners.of(asker).await;
            if let Some(reply) = answer(&gateway, &question, exec).await {
                let _ = socket.send_to(&reply, from).await;
            }
            drop(permit);
        });
    }
}

/// Answers questions on a TCP connection: two bytes of length, then the message.
pub(crate) async fn serve_tcp(gateway: Arc<Gateway>, ticket: &Ticket, mut stream: TcpStream) {
    ticket.identify().await;
    let patience = gateway.head_patience();
    loop {
        let question = async {
            let count = usize::from(stream.read_u16().await.ok()?);
            if count > MOST_QUESTION {
                return None;
            }
            let mut bytes = vec![0; count];
            stream.read_exact(&mut bytes).await.ok()?;
            Some(bytes)
        };
        let Ok(Some(question)) = tokio::time::timeout(patience, question).await else { return };
        let Some(reply) = answer(&gateway, &question, ticket.exec()).await else { return };
        let Ok(length) = u16::try_from(reply.len()) else { return };
        let whole = [&length.to_be_bytes()[..], &reply].concat();
        if stream.write_all(&whole).await.is_err() {
            return;
        }
    }
}

/// The reply to a message, if it deserves one.
pub(crate) async fn answer(
    gateway: &Gateway,
    bytes: &[u8],
    exec: Option<String>,
) -> Option<Vec<u8>> {
    let question = Message::from_vec(bytes).ok()?;
    if question.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
    reply.metadata.recursion_desired = question.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    let code = match question.queries.as_slice() {
        _ if question.metadata.op_code != OpCode::Query => ResponseCode::NotImp,
        [query] => {
            reply.add_query(query.clone());
            if query.query_class() == DNSClass::IN {
                answer_query(gateway, query, exec, &mut reply).await
            } else {
                ResponseCode::Refused
            }
        }
        _ => ResponseCode::FormErr,
    };
    reply.metadata.response_code = code;
    reply.to_vec().ok()
}

async fn answer_query(
    gateway: &Gateway,
    query: &Query,
    exec: Option<String>,
    reply: &mut Message,
) -> ResponseCode {
    let text = query.name().to_ascii();
    let mut subject = Subject { host: text.clone(), port: 53, ip: None, proto: "dns", exec };
    let Ok(name) = Name::parse(&text) else {
        gateway.deny(&subject, reason::BAD_HOST);
        return ResponseCode::NXDomain;
    };
    subject.host = name.to_string();
    let rules = gateway.rules();
    let rule = match rules.decide_name(&name) {
        Verdict::Allow { rule } => rule,
        Verdict::Deny { reason, .. } => {
            gateway.deny(&subject, reason);
            return ResponseCode::NXDomain;
        }
    };
    let kind = query.query_type();
    if !matches!(kind, RecordType::A | RecordType::AAAA) {
        // The name exists and has nothing of this kind. Mail, text and service records carry
        // data, and HTTPS records would bring keys that hide the server name.
        return ResponseCode::NoError;
    }
    match gateway.names.lookup(&rules, &name).await {
        Ok(found) => {
            if found.fresh {
                subject.ip = found.addresses.first().copied();
                gateway.allow(&subject, &rule, None, (0, 0));
            }
            let wanted = |ip: &&IpAddr| ip.is_ipv4() == (kind == RecordType::A);
            for address in found.addresses.iter().filter(wanted) {
                let data = match address {
                    IpAddr::V4(address) => RData::A((*address).into()),
                    IpAddr::V6(address) => RData::AAAA((*address).into()),
                };
                let ttl = PINNED.as_secs() as u32;
                reply.add_answer(Record::from_rdata(query.name().clone(), ttl, data));
            }
            ResponseCode::NoError
        }
        Err(refusal) => {
            subject.ip = refusal.address();
            gateway.deny(&subject, refusal.reason());
            if refusal == Refusal::Failed { ResponseCode::ServFail } else { ResponseCode::NXDomain }
        }
    }
}
