//! The endpoints, by what they are about. A handler says what is asked; everything else is done
//! around it.

mod execs;
mod files;
mod health;
mod layers;
mod network;
mod operations;
mod review;
mod sandboxes;
mod session;

use crate::app::Shared;
use utoipa_axum::router::OpenApiRouter;

/// All of them.
pub(crate) fn all() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .merge(health::routes())
        .merge(session::routes())
        .merge(sandboxes::routes())
        .merge(execs::routes())
        .merge(files::routes())
        .merge(review::routes())
        .merge(layers::routes())
        .merge(network::routes())
        .merge(operations::routes())
}
