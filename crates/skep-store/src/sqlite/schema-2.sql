-- Retention looks by age, in tables that grow with use.
CREATE INDEX events_at ON events (at_us);
CREATE INDEX sandboxes_deleted ON sandboxes (updated_us) WHERE state = 'deleted';
CREATE INDEX idempotency_keys_expiry ON idempotency_keys (expires_us);
