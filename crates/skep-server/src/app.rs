//! The state that all handlers share, and the router.

use crate::audit::Audit;
use crate::calls::{Call, Order};
use crate::failure::Failure;
use crate::guard::{Principal, guard};
use crate::measure::{self, Metrics};
use crate::pool::{Pool, Reply};
use crate::quota::Quotas;
use crate::roles::Role;
use crate::routes;
use crate::tokens::{Bootstrap, Tokens};
use axum::Router;
use axum::response::IntoResponse as _;
use skep_types::{ByteString, Code, Problem};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Mutex, Semaphore, watch};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;

/// Streams (SSE, WebSocket, waiting execs) at a time; more are told to come back.
pub(crate) const STREAMS: usize = 512;

/// What handlers share.
pub(crate) struct App {
    pub(crate) pool: Pool,
    pub(crate) tokens: Tokens,
    pub(crate) bootstrap: Option<Bootstrap>,
    pub(crate) audit: Audit,
    pub(crate) metrics: Metrics,
    pub(crate) quotas: Quotas,
    /// Held from counting what there is until the new one is there.
    pub(crate) counting: Mutex<()>,
    /// The state directory.
    pub(crate) state_dir: PathBuf,
    /// The server's own user.
    pub(crate) user: u32,
    /// The home directory requests start from that name none.
    pub(crate) home: PathBuf,
    /// The environment they start from.
    pub(crate) environment: BTreeMap<String, ByteString>,
    pub(crate) clock: fn() -> String,
    /// True once the server is about to stop.
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) inputs: crate::inputs::Inputs,
    pub(crate) canary: crate::canary::Canary,
}

/// As handlers get it.
pub(crate) type Shared = Arc<App>;

impl App {
    /// The clock.
    pub(crate) fn now(&self) -> String {
        (self.clock)()
    }

    /// Who a token stands for.
    pub(crate) fn by_token(&self, text: &str) -> Option<Principal> {
        if self.bootstrap.is_some_and(|bootstrap| bootstrap.is(text)) {
            return Some(Principal {
                name: "bootstrap".into(),
                actor: Some("bootstrap token".into()),
                role: Role::Approver,
                bound: None,
            });
        }
        let token = self.tokens.check(text, &self.now())?;
        Some(Principal {
            name: format!("token:{}", token.id),
            actor: Some(format!("{} (token {})", token.name, token.id)),
            role: token.role,
            bound: token.sandbox,
        })
    }

    /// Asks a worker, and notes how long that took.
    pub(crate) async fn ask(&self, order: Order) -> Result<Reply, Problem> {
        self.ask_with(order, None).await
    }

    /// The same with a file that goes along.
    pub(crate) async fn ask_with(
        &self,
        order: Order,
        file: Option<Arc<File>>,
    ) -> Result<Reply, Problem> {
        let name = measure::name_of(&order.call);
        let began = Instant::now();
        let reply = self.pool.ask_with(order, file).await;
        if let Some(name) = name {
            self.metrics.call(name, began.elapsed().as_secs_f64());
        }
        if reply.as_ref().is_ok_and(|reply| reply.replayed) {
            self.metrics.replay();
        }
        reply
    }

    /// Asks on the server's own behalf.
    pub(crate) async fn ask_own(&self, call: Call) -> Result<Reply, Problem> {
        self.ask(Order::own(call)).await
    }
}

/// The frame of the OpenAPI document; the endpoints are added as they are routed.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "skep",
        description = "Runs agents, builds and untrusted commands on a copy of a project, shows what they changed, and takes over what is approved.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(crate::schema::Error)),
    modifiers(&Security),
)]
struct Document;

struct Security;

impl utoipa::Modify for Security {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        use utoipa::openapi::security::{
            Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
        };
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = document.components.get_or_insert_with(Default::default);
        components.add_security_scheme("token", bearer);
        document.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
    }
}

fn routed() -> (Router<Shared>, utoipa::openapi::OpenApi) {
    OpenApiRouter::with_openapi(Document::openapi()).merge(routes::all()).split_for_parts()
}

/// The OpenAPI document, as it is served and checked in.
pub fn openapi() -> String {
    let mut document = routed().1;
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let mut text = document.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// Everything together.
pub(crate) fn router(app: Shared) -> Router {
    let (router, _) = routed();
    let missing = || async { Failure::new(Code::NotFound, "there is nothing at this path") };
    let method = || async { Failure::new(Code::MethodNotAllowed, "not by this method") };
    router
        .fallback(missing)
        .method_not_allowed_fallback(method)
        .layer(CatchPanicLayer::custom(|_| {
            Failure::new(Code::Internal, "this request met a bug of skep's").into_response()
        }))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}
