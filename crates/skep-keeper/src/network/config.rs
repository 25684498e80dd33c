//! What the egress process is told, put together from the policy and from what the host knows.

use crate::failure::{Failure, Step};
use skep_provider::RunSpec;
use skep_types::{EgressConfig, EgressLimits, EgressSecret};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Where the host's name servers and fixed names stand.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";
/// Larger ones (a list of blocked names may have megabytes) are read up to here.
const LARGEST: usize = 256 << 10;
/// Where hosts keep their list of trusted authorities, by distribution.
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The first message to the egress process.
pub fn egress_config(spec: &RunSpec) -> Result<EgressConfig, Failure> {
    let policy = &spec.policy.egress;
    let resolvers = match policy.resolvers.is_empty() {
        false => policy.resolvers.clone(),
        true => name_servers(&read(RESOLV_CONF)),
    };
    let mut hosts = fixed_names(&read(HOSTS));
    hosts.extend(policy.hosts.clone());
    let mut extra_ca = String::new();
    for file in &policy.extra_ca {
        let text = std::fs::read_to_string(file.as_path())
            .step(|| format!("read the certificates in `{file}`"))?;
        extra_ca.push_str(text.trim_end());
        extra_ca.push('\n');
    }
    Ok(EgressConfig {
        sandbox: spec.id.to_string(),
        rules: policy.allow.clone(),
        hosts,
        resolvers,
        secrets: secrets(spec)?,
        attribute: true,
        limits: EgressLimits::default(),
        extra_ca,
        authority_key: None,
    })
}

/// Each secret with something of the same shape to stand for it inside.
fn secrets(spec: &RunSpec) -> Result<Vec<EgressSecret>, Failure> {
    let secret = |secret: &skep_types::Secret| {
        let value = spec.secrets.edge.get(&secret.name).cloned().ok_or_else(|| {
            Failure::invalid(format!("the value of secret `{}` was not read", secret.name))
        })?;
        let mut entropy = [0; 32];
        let filled = rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty());
        if filled.step(|| "get random bytes".into())? != entropy.len() {
            return Err(Failure::invalid("the kernel gave too few random bytes"));
        }
        Ok(EgressSecret {
            name: secret.name.clone(),
            placeholder: skep_policy::egress::placeholder(value.expose(), &entropy),
            hosts: secret.hosts.clone(),
            value,
            in_body: secret.in_body,
        })
    };
    spec.policy.egress.secrets.iter().map(secret).collect()
}

/// What programs inside trust: what the host trusts, what the policy adds, and the sandbox's own
/// authority, which signs for the hosts that get a secret.
pub fn bundle(config: &EgressConfig, own: &str) -> String {
    let host = BUNDLES.iter().find_map(|path| std::fs::read_to_string(path).ok());
    let mut text = host.unwrap_or_default();
    for part in [config.extra_ca.as_str(), own] {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(part);
    }
    text
}

fn read(path: &str) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&bytes[..bytes.len().min(LARGEST)]).into_owned()
}

fn name_servers(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()).flatten()
    });
    // A link-local server carries its interface (`fe80::1%eth0`); the others are asked then.
    let addresses = lines.filter_map(|word| word.parse::<IpAddr>().ok());
    addresses.map(|address| SocketAddr::new(address, 53)).take(3).collect()
}

fn fixed_names(text: &str) -> BTreeMap<String, Vec<IpAddr>> {
    let mut names: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else {
            continue;
        };
        for name in words.filter_map(|word| skep_policy::egress::Name::parse(word).ok()) {
            let addresses = names.entry(name.as_str().to_owned()).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_and_odd_lines_are_not() {
        let text = "# x\nsearch a.test\nnameserver 10.0.0.1\nnameserver fe80::1%eth0\n nameserver ::1 \nnameserver\n";
        let expected: Vec<SocketAddr> =
            ["10.0.0.1:53", "[::1]:53"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(name_servers(text), expected);
    }

    #[test]
    fn fixed_names_take_all_addresses_of_a_name() {
        let names =
            fixed_names("127.0.0.1 localhost\n8.8.8.8 DB.test db # x\n::2 db.test\nbad x\n");
        assert_eq!(names["db.test"].len(), 2);
        assert_eq!(names["db"], ["8.8.8.8".parse::<IpAddr>().unwrap()]);
        assert!(!names.contains_key("x"));
    }
}
