//! Names of images: `NAME`, `NAME:TAG`, `NAME@DIGEST`, or an id.

use crate::ImageError;

/// Longest name of an image, as registries have it, with a digest.
const MAX_REFERENCE: usize = 512;

/// Refuses what is no name, digest or id of an image. Others write it into the path of a request as
/// it is: `../containers/x` would be a container, and what follows a `?` an option.
pub fn check(reference: &str) -> Result<(), ImageError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/:@-".contains(&byte);
    let segment = |segment: &str| !["", ".", ".."].contains(&segment);
    if reference.len() <= MAX_REFERENCE
        && reference.bytes().all(plain)
        && reference.split('/').all(segment)
    {
        return Ok(());
    }
    Err(ImageError::Invalid(format!(
        "`{reference}` is no image: it looks like `NAME:TAG`, `NAME@sha256:…` or an id"
    )))
}

/// Name and tag, for an image that is to be made: a digest cannot be chosen.
pub fn whole(reference: &str) -> Result<(&str, &str), ImageError> {
    let start = reference.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match reference[start..].find(':') {
        Some(colon) => (&reference[..start + colon], &reference[start + colon + 1..]),
        None => (reference, "latest"),
    };
    if check(reference).is_err() || reference.contains('@') || name.is_empty() || tag.is_empty() {
        return Err(ImageError::Invalid(format!(
            "`{reference}` is no name for an image: it looks like `NAME` or `NAME:TAG`"
        )));
    }
    Ok((name, tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_one_object_of_one_kind() {
        for good in ["debian", "host:5000/a/b_c.d-e:12", "a@sha256:0f", "sha256:0f", "0f3a"] {
            check(good).unwrap();
        }
        let long = "a".repeat(MAX_REFERENCE + 1);
        for bad in [
            "", "..", "../x", "a/../x", "a//b", "/a", "a/", "a?x", "a#x", "a%2f", "a b", "ä", &long,
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_port_is_no_tag() {
        assert_eq!(whole("host:5000/debian").unwrap(), ("host:5000/debian", "latest"));
        assert_eq!(whole("debian:12").unwrap(), ("debian", "12"));
        assert!(whole("debian@sha256:0").is_err() && whole(":12").is_err());
    }
}
