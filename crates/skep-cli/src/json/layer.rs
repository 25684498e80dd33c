//! The enforcement report: an object from layer name to what is known.

use serde::Serialize;
use skep_types::{EnforcementReport, Layer};
use std::collections::BTreeMap;

/// One layer.
#[derive(Debug, Serialize)]
pub(crate) struct LayerView {
    enforced: bool,
    how: String,
    reason: Option<String>,
}

/// Every layer; one that the report does not know is not enforced.
pub(crate) fn enforcement(report: &EnforcementReport) -> BTreeMap<&'static str, LayerView> {
    let view = |layer: Layer| match report.0.get(&layer) {
        Some(found) => LayerView {
            enforced: found.enforced,
            how: found.how.clone(),
            reason: found.reason.clone(),
        },
        None => LayerView {
            enforced: false,
            how: "none".to_owned(),
            reason: Some("not reported".to_owned()),
        },
    };
    Layer::ALL.into_iter().map(|layer| (layer.as_str(), view(layer))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_nobody_reported_is_not_enforced() {
        let json = serde_json::to_value(enforcement(&EnforcementReport::default())).unwrap();
        for layer in Layer::ALL {
            assert_eq!(json[layer.as_str()]["enforced"], false, "{layer}");
            assert!(json[layer.as_str()]["reason"].is_string());
        }
    }
}
