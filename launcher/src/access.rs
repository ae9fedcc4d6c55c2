//! Who may use the server: the flags, and the configuration that follows from them.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use penstock_http::{Access, Cors, KeyHash, Reload, RouterConfig, Tenants, Tls};

use crate::error::{Failure, Outcome};
use crate::tenants;

/// Settings of access.
#[derive(Clone, Default, Args)]
#[command(next_help_heading = "Access")]
pub struct AccessArgs {
    /// API key that requests must present, itself or as sha256:HASH; may be given several times.
    /// Other users of the host see flags: prefer the variable or the file [default: none is needed]
    #[arg(long, value_name = "KEY")]
    pub api_key: Vec<String>,
    /// TOML file of tenants with their API keys, weights and limits (docs/tenants.md); SIGHUP reads it
    /// again
    #[arg(long, value_name = "FILE")]
    pub tenants: Option<PathBuf>,
    /// Token of the routes under /admin, itself or as sha256:HASH [default: they do not exist]
    #[arg(long, value_name = "TOKEN")]
    pub admin_token: Option<String>,
    /// Origin of web pages that may call the server (scheme, host and port), or *; may be
    /// given several times [default: none]
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    pub cors_allow_origin: Vec<String>,
    /// Name by which requests may address the server, besides its addresses and localhost, or *;
    /// may be given several times [default: none if --host is a loopback address, else *]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub allowed_host: Vec<String>,
    /// PEM file of the certificate chain, for TLS; SIGHUP reads it again
    #[arg(long, value_name = "FILE", alias = "ssl-certfile")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file of the certificate's private key
    #[arg(long, value_name = "FILE", alias = "ssl-keyfile")]
    pub tls_key: Option<PathBuf>,
}

/// The checked settings of access.
#[derive(Clone, Debug)]
pub struct Exposure {
    access: Access,
    cors: Cors,
    tls: Option<Tls>,
    tenants: Option<PathBuf>,
}

impl std::fmt::Debug for AccessArgs {
    /// Prints no secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessArgs").finish_non_exhaustive()
    }
}

impl AccessArgs {
    /// Checks the settings of a server that listens on `host`, and reads the files.
    ///
    /// # Errors
    /// If a key is malformed, or the certificate cannot be used.
    pub fn open(&self, host: IpAddr) -> Outcome<Exposure> {
        let parse = |flag: &str, text: &str| {
            let wrong = |why| Failure::usage(format!("{flag}: {why}."));
            KeyHash::parse(text).map_err(wrong)
        };
        let keys = self.api_key.iter().map(|key| parse("--api-key", key));
        let admin = self.admin_token.as_deref();
        let checks_host = host.is_loopback() || !self.allowed_host.is_empty();
        let tenants = Tenants::default();
        if let Some(path) = &self.tenants {
            let read = tenants::read(path);
            tenants.replace(read.map_err(|why| Failure::runtime(format!("--tenants: {why}.")))?);
        }
        let any = self.cors_allow_origin.iter().any(|origin| origin == "*");
        Ok(Exposure {
            access: Access {
                keys: keys.collect::<Outcome<_>>()?,
                tenants,
                admin: admin
                    .map(|token| parse("--admin-token", token))
                    .transpose()?,
                hosts: checks_host.then(|| self.allowed_host.clone()),
            },
            cors: match any {
                true => Cors::Any,
                false => Cors::Origins(self.cors_allow_origin.clone()),
            },
            tls: self.open_tls()?,
            tenants: self.tenants.clone(),
        })
    }

    fn open_tls(&self) -> Outcome<Option<Tls>> {
        match (&self.tls_cert, &self.tls_key) {
            (None, None) => Ok(None),
            (Some(certificate), Some(key)) => match Tls::open(certificate, key) {
                Ok(tls) => Ok(Some(tls)),
                Err(why) => Err(Failure::runtime(format!("--tls-cert: {why}."))),
            },
            _ => Err(Failure::usage(
                "--tls-cert and --tls-key belong together: set both, or none.",
            )),
        }
    }
}

impl Exposure {
    /// Returns the exposure of a server for one program of this host.
    pub fn local() -> Self {
        let access = Access {
            hosts: Some(Vec::new()),
            ..Access::default()
        };
        Self {
            access,
            cors: Cors::Origins(Vec::new()),
            tls: None,
            tenants: None,
        }
    }

    /// Returns `config` with these settings.
    pub fn apply(&self, config: RouterConfig) -> RouterConfig {
        RouterConfig {
            access: self.access.clone(),
            cors: self.cors.clone(),
            tls: self.tls.clone(),
            reload: self.reload(),
            ..config
        }
    }

    /// Returns what reads the files again.
    pub fn reload(&self) -> Reload {
        let (tls, path) = (self.tls.clone(), self.tenants.clone());
        let tenants = self.access.tenants.clone();
        Reload::new(move || {
            let read = path.as_deref().map(tenants::read).transpose()?;
            tls.as_ref().map_or(Ok(()), Tls::reload)?;
            if let Some(read) = read {
                tenants.replace(read);
            }
            Ok(())
        })
    }

    /// Returns whether there are files to read again.
    pub fn has_files(&self) -> bool {
        self.tls.is_some() || self.tenants.is_some()
    }

    /// Returns the scheme of the server's URL.
    pub fn scheme(&self) -> &'static str {
        match self.tls {
            Some(_) => "https",
            None => "http",
        }
    }

    /// Returns whether requests need a key.
    pub fn needs_key(&self) -> bool {
        !self.access.keys.is_empty() || self.tenants.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn opened(host: Ipv4Addr, change: impl FnOnce(&mut AccessArgs)) -> Outcome<RouterConfig> {
        let mut args = AccessArgs::default();
        change(&mut args);
        let exposure = args.open(host.into())?;
        Ok(exposure.apply(RouterConfig::new("m")))
    }

    #[test]
    fn hosts_are_checked_on_loopback_or_if_names_are_given() {
        let hosts = |host, names: &[&str]| {
            let names = names.iter().map(ToString::to_string).collect();
            let config = opened(host, |args| args.allowed_host = names);
            config.unwrap().access.hosts
        };
        assert_eq!(hosts(Ipv4Addr::LOCALHOST, &[]), Some(vec![]));
        assert_eq!(hosts(Ipv4Addr::UNSPECIFIED, &[]), None);
        let named = Some(vec!["llm.example".to_owned()]);
        assert_eq!(hosts(Ipv4Addr::UNSPECIFIED, &["llm.example"]), named);
    }

    #[test]
    fn web_pages_are_kept_out_by_default() {
        let local = Ipv4Addr::LOCALHOST;
        let closed = opened(local, |_| {}).unwrap();
        assert_eq!(closed.cors, Cors::Origins(vec![]));
        let origins = |args: &mut AccessArgs| {
            args.cors_allow_origin = vec!["https://a".into(), "*".into()];
        };
        assert_eq!(opened(local, origins).unwrap().cors, Cors::Any);
    }

    #[test]
    fn wrong_settings_are_named_and_secrets_are_not_printed() {
        let local = Ipv4Addr::LOCALHOST;
        let wrong = opened(local, |args| args.api_key = vec!["my secret".into()]).unwrap_err();
        assert!(wrong.message.contains("--api-key") && !wrong.message.contains("secret"));
        let alone = opened(local, |args| args.tls_key = Some("key.pem".into())).unwrap_err();
        assert_eq!(alone.exit_code(), 2);
        let absent = |args: &mut AccessArgs| {
            args.tls_cert = Some("absent.pem".into());
            args.tls_key = Some("absent.key".into());
        };
        let absent = opened(local, absent).unwrap_err();
        assert!(absent.message.contains("absent.pem"), "{absent}");
        let args = AccessArgs {
            admin_token: Some("token".into()),
            ..AccessArgs::default()
        };
        assert!(!format!("{args:?}").contains("\"token\""));
    }
}
