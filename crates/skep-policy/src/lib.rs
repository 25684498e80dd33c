//! Pure decisions with reasons: risk classes, acceptance rules, hide lists, profiles and narrowing.
