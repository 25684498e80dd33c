//! How values look in a config file: sizes and durations with a unit, counts greater than zero,
//! `"none"` to lift a limit.

use super::Mentioned;
use crate::egress::{Name, RuleSet};
use serde::de::{self, Deserialize, Deserializer};
use skep_types::{ByteSize, ByteString, Limits, RelPath, parse_duration};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

const NONE: &str = "none";

pub(super) fn size<'de, D: Deserializer<'de>>(input: D) -> Result<Mentioned<ByteSize>, D::Error> {
    let text = String::deserialize(input)?;
    if text == NONE { Ok(Some(None)) } else { parse_size(&text).map(|size| Some(Some(size))) }
}

pub(super) fn duration<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Mentioned<Duration>, D::Error> {
    let text = String::deserialize(input)?;
    if text == NONE {
        return Ok(Some(None));
    }
    parse_duration(&text).map(|duration| Some(Some(duration))).map_err(de::Error::custom)
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Number {
    Count(i64),
    Real(f64),
    Text(String),
}

pub(super) fn count<'de, D: Deserializer<'de>>(input: D) -> Result<Mentioned<u64>, D::Error> {
    match Number::deserialize(input)? {
        Number::Count(count) => positive(count).map(|count| Some(Some(count))),
        Number::Text(text) if text == NONE => Ok(Some(None)),
        Number::Real(_) | Number::Text(_) => {
            Err(de::Error::custom("a whole number greater than zero, or \"none\", is expected"))
        }
    }
}

pub(super) fn cpus<'de, D: Deserializer<'de>>(input: D) -> Result<Mentioned<f64>, D::Error> {
    let value = match Number::deserialize(input)? {
        Number::Count(count) => count as f64,
        Number::Real(real) => real,
        Number::Text(text) if text == NONE => return Ok(Some(None)),
        Number::Text(text) => {
            return Err(de::Error::custom(format!("`{text}` is not a number of processors")));
        }
    };
    let limits = Limits { cpus: Some(value), ..Limits::default() };
    crate::validate(&limits).map(|()| Some(Some(value))).map_err(de::Error::custom)
}

pub(super) fn plain_size<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<ByteSize>, D::Error> {
    parse_size(&String::deserialize(input)?).map(Some)
}

pub(super) fn required_size<'de, D: Deserializer<'de>>(input: D) -> Result<ByteSize, D::Error> {
    parse_size(&String::deserialize(input)?)
}

pub(super) fn plain_duration<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<Duration>, D::Error> {
    parse_duration(&String::deserialize(input)?).map(Some).map_err(de::Error::custom)
}

pub(super) fn plain_count<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u64>, D::Error> {
    positive(i64::deserialize(input)?).map(Some)
}

pub(super) fn needed_count<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
    positive(i64::deserialize(input)?)
}

pub(super) fn required_percent<'de, D: Deserializer<'de>>(input: D) -> Result<u8, D::Error> {
    let value = i64::deserialize(input)?;
    u8::try_from(value).ok().filter(|percent| (1..=100).contains(percent)).ok_or_else(|| {
        de::Error::custom(format!("`{value}` is not a percentage between 1 and 100"))
    })
}

pub(super) fn percent<'de, D: Deserializer<'de>>(input: D) -> Result<Option<u8>, D::Error> {
    required_percent(input).map(Some)
}

/// Pieces of the home: relative, and never the home itself.
pub(super) fn home_pieces<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<Vec<ByteString>>, D::Error> {
    let pieces = Vec::<ByteString>::deserialize(input)?;
    for piece in &pieces {
        match RelPath::parse(piece.as_bytes()) {
            Ok(path) if path.is_root() => {
                return Err(de::Error::custom("the whole home cannot be shown"));
            }
            Ok(_) => {}
            Err(error) => return Err(de::Error::custom(error)),
        }
    }
    Ok(Some(pieces))
}

/// Variables: a name without `=`, a value without NUL.
pub(super) fn variables<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<BTreeMap<String, ByteString>, D::Error> {
    let variables = BTreeMap::<String, ByteString>::deserialize(input)?;
    for (name, value) in &variables {
        if name.is_empty() || name.contains(['=', '\0']) || value.as_bytes().contains(&0) {
            return Err(de::Error::custom(format!(
                "`{}` cannot be a variable",
                name.escape_debug()
            )));
        }
    }
    Ok(variables)
}

fn parse_size<E: de::Error>(text: &str) -> Result<ByteSize, E> {
    text.parse().map_err(E::custom)
}

fn positive<E: de::Error>(value: i64) -> Result<u64, E> {
    u64::try_from(value)
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| E::custom(format!("`{value}` is not greater than zero")))
}

/// Allow rules, in their canonical form. Presets may be the user's own, which are known later.
pub(super) fn rules<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Vec<String>>, D::Error> {
    let texts = Vec::<String>::deserialize(input)?;
    crate::outward::canonical_rules(&texts).map(Some).map_err(de::Error::custom)
}

/// `[egress.presets]`: a name, and its rules in their canonical form.
pub(super) fn presets<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<BTreeMap<String, Vec<String>>, D::Error> {
    let given = BTreeMap::<String, Vec<String>>::deserialize(input)?;
    let entry = |(name, rules): (String, Vec<String>)| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || !name.chars().all(plain) {
            let reason = format!("`{name}` is no name of a preset: lower case, digits and `-`");
            return Err(de::Error::custom(reason));
        }
        let rules = RuleSet::parse(&rules).map_err(de::Error::custom)?.labels();
        Ok((name, rules))
    };
    given.into_iter().map(entry).collect()
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(IpAddr),
    More(Vec<IpAddr>),
}

/// `[egress.hosts]`: a name and its address, or addresses.
pub(super) fn host_addresses<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<BTreeMap<String, Vec<IpAddr>>, D::Error> {
    let given = BTreeMap::<String, OneOrMore>::deserialize(input)?;
    let entry = |(name, addresses): (String, OneOrMore)| {
        let name = Name::parse(&name).map_err(de::Error::custom)?;
        let addresses = match addresses {
            OneOrMore::One(address) => vec![address],
            OneOrMore::More(addresses) => addresses,
        };
        Ok((name.as_str().to_owned(), addresses))
    };
    given.into_iter().map(entry).collect()
}

/// Name servers: addresses, with a port or without.
pub(super) fn resolvers<'de, D: Deserializer<'de>>(
    input: D,
) -> Result<Option<Vec<SocketAddr>>, D::Error> {
    let server = |text: String| {
        let plain = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, 53));
        plain
            .or_else(|_| text.parse())
            .map_err(|_| de::Error::custom(format!("`{text}` is not an address of a name server")))
    };
    Vec::<String>::deserialize(input)?.into_iter().map(server).collect::<Result<_, _>>().map(Some)
}
