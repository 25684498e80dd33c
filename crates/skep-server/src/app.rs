//! The state that all handlers share, and the router.

use crate::audit::Audit;
use crate::calls::{Call, Order};
use crate::failure::Failure;
use crate::guard::{Principal, Proof, guard};
use crate::measure::{self, Metrics};
use crate::places::Share;
use crate::pool::{Pool, Reply};
use crate::roles::Role;
use crate::routes;
use crate::sessions::{OpenedWith, Sessions};
use crate::tokens::{Bootstrap, Token, Tokens};
use crate::traces;
use crate::traces::Traces;
use axum::Router;
use axum::http::HeaderMap;
use axum::response::IntoResponse as _;
use skep_engine::{Layout, Verdicts};
use skep_types::{ByteString, Code, Problem};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::watch;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;

/// What handlers share.
pub(crate) struct App {
    pub(crate) pool: Pool,
    pub(crate) tokens: Tokens,
    pub(crate) sessions: Sessions,
    pub(crate) bootstrap: Option<Bootstrap>,
    pub(crate) audit: Audit,
    pub(crate) metrics: Metrics,
    pub(crate) traces: Option<Traces>,
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
    pub(crate) streams: Arc<Share>,
    /// For bodies that arrive.
    pub(crate) memory: Arc<Share>,
    pub(crate) disk: Arc<Share>,
    pub(crate) feed: crate::following::Feed,
    pub(crate) layout: Layout,
    /// How far the logs of ways out were counted.
    pub(crate) verdicts: Mutex<Verdicts>,
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
        let proof = Proof::Token(text.into());
        self.by_secret(text).map(|(principal, _, _)| Principal { proof, ..principal })
    }

    /// The same, with what a session opened with it remembers, and when it must end.
    pub(crate) fn by_secret(&self, text: &str) -> Option<(Principal, OpenedWith, Option<String>)> {
        if let Some(bootstrap) = self.bootstrap.filter(|bootstrap| bootstrap.is(text)) {
            let with = OpenedWith::Bootstrap { hash: bootstrap.hash() };
            return Some((bootstrapper(), with, None));
        }
        let token = self.tokens.check(text, &self.now())?;
        let with = OpenedWith::Token { id: token.id.clone(), hash: token.hash().to_owned() };
        let end = token.expires_at.clone();
        Some((holder(token), with, end))
    }

    /// Who a browser's session stands for: whatever its token stands for now.
    pub(crate) fn by_session(&self, headers: &HeaderMap) -> Option<Principal> {
        let now = self.now();
        let (id, with) = self.sessions.check(headers, &now)?;
        let principal = match &with {
            OpenedWith::Bootstrap { hash } => {
                let same = self.bootstrap.is_some_and(|bootstrap| bootstrap.hash() == *hash);
                same.then(bootstrapper)?
            }
            OpenedWith::Token { id, hash } => holder(self.tokens.find(id, hash, &now)?),
        };
        let proof = Proof::Session(Arc::new(headers.clone()));
        Some(Principal { session: Some(id), proof, ..principal })
    }

    /// Whether somebody still is who they were, and may as much.
    pub(crate) fn still_is(&self, who: &Principal) -> bool {
        let now = match &who.proof {
            Proof::Peer => return true,
            Proof::Token(text) => self.by_token(text),
            Proof::Session(headers) => self.by_session(headers),
        };
        now.is_some_and(|now| now.role == who.role && now.bound == who.bound)
    }

    /// Asks a worker, and notes how long that took.
    pub(crate) async fn ask(self: &Arc<Self>, order: Order) -> Result<Reply, Problem> {
        self.ask_with(order, None).await
    }

    /// The same with a file that goes along.
    pub(crate) async fn ask_with(
        self: &Arc<Self>,
        order: Order,
        file: Option<Arc<File>>,
    ) -> Result<Reply, Problem> {
        if let Call::Remove { sandbox, .. } = &order.call {
            self.count_last_verdicts(sandbox).await;
        }
        let name = measure::name_of(&order.call);
        let began = Instant::now();
        let span = self.traces.as_ref().and_then(|traces| traces.begin_call(&order.call));
        let reply = self.pool.ask_with(order, file).await;
        if let Some(span) = span {
            traces::end_call(&span, reply.as_ref().err());
        }
        if let Some(name) = name {
            self.metrics.call(name, began.elapsed().as_secs_f64());
        }
        if reply.as_ref().is_ok_and(|reply| reply.replayed) {
            self.metrics.replay();
        }
        reply
    }

    /// Counts what went out of sandboxes, and what did not, since this was last done.
    pub(crate) async fn count_verdicts(self: &Arc<Self>) {
        let app = Arc::clone(self);
        let _ = tokio::task::spawn_blocking(move || {
            app.verdicts().look(&app.layout, &mut |entry| app.metrics.verdict(entry));
        })
        .await;
    }

    /// The same of one that is about to go, with its log.
    async fn count_last_verdicts(self: &Arc<Self>, sandbox: &str) {
        match sandbox.parse() {
            Ok(id) => {
                let tell = &mut |entry: &_| self.metrics.verdict(entry);
                self.verdicts().look_at(&self.layout, &id, tell);
            }
            Err(_) => self.count_verdicts().await,
        }
    }

    fn verdicts(&self) -> std::sync::MutexGuard<'_, Verdicts> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks on the server's own behalf.
    pub(crate) async fn ask_own(self: &Arc<Self>, call: Call) -> Result<Reply, Problem> {
        self.ask(Order::own(call)).await
    }
}

fn bootstrapper() -> Principal {
    Principal {
        name: "bootstrap".into(),
        actor: Some("bootstrap token".into()),
        role: Role::Approver,
        bound: None,
        session: None,
        proof: Proof::Peer,
    }
}

fn holder(token: Token) -> Principal {
    Principal {
        name: format!("token:{}", token.id),
        actor: Some(format!("{} (token {})", token.name, token.id)),
        role: token.role,
        bound: token.sandbox,
        session: None,
        proof: Proof::Peer,
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
            ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
        };
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = document.components.get_or_insert_with(Default::default);
        components.add_security_scheme("token", bearer);
        let cookie = ApiKey::Cookie(ApiKeyValue::new(crate::sessions::COOKIE));
        components.add_security_scheme("session", SecurityScheme::ApiKey(cookie));
        let key = ApiKey::Header(ApiKeyValue::new(crate::sessions::KEY_HEADER));
        components.add_security_scheme("session_key", SecurityScheme::ApiKey(key));
        let none = Vec::<String>::new;
        let session = SecurityRequirement::new("session", none()).add("session_key", none());
        document.security = Some(vec![SecurityRequirement::new("token", none()), session]);
    }
}

fn routed() -> (Router<Shared>, utoipa::openapi::OpenApi) {
    OpenApiRouter::with_openapi(Document::openapi()).merge(routes::all()).split_for_parts()
}

/// The OpenAPI document, as it is served and checked in.
pub fn openapi() -> String {
    let mut document = routed().1;
    crate::statuses::add(&mut document);
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
