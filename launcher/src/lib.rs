//! Command line, configuration, model files, worker supervision.
