"""What to write instead of names that users of pandas, scikit-learn, statsmodels or wandb try on a record."""

from __future__ import annotations

FORECAST = "scalerl.forecast(fit, at=['2x', '4x'])"
COLUMNS_HINT = (
    "`compute` and `metric` are its arrays; pandas.DataFrame({'compute': curve.compute, 'metric': curve.metric})"
)

HABITS: dict[str, dict[str, str]] = {
    "Curve": {
        "x X xs steps hours flops tokens index": "write curve.compute, in the unit of curve.axis",
        "y Y ys values rewards accuracy acc scores pass_rate": "write curve.metric",
        "fit": "write scalerl.fit(curve)",
        "forecast predict": f"write {FORECAST} with fit = scalerl.fit(curve)",
        "name title task": "write curve.label",
        "to_frame to_pandas df frame data points rows columns to_dict to_csv": COLUMNS_HINT,
        "n size shape num_points": "write len(curve)",
        "se sem error errors err": "write curve.stderr, which is None if the rows have none",
    },
    "Fit": {
        "params parameters coef_ coef coefficients popt best_fit theta": (
            "write fit.asymptote, fit.efficiency, fit.midpoint and fit.initial, each with mean, sd, low and high; "
            "fit.to_dict() has all"
        ),
        "A ceiling L limit_ plateau intercept_": "write fit.asymptote",
        "B slope exponent alpha": "write fit.efficiency",
        "C_mid Cmid c_mid C50 half": "write fit.midpoint",
        "R0 r0 start baseline": "write fit.initial",
        "summary describe report info": "write print(fit); fit.to_dict() has the same as JSON values",
        "ci conf_int confint interval intervals confidence_interval bse std_err se": (
            "write fit.asymptote.low and fit.asymptote.high, the 90% interval; fit.predict(compute) has that of the "
            "curve"
        ),
        "pcov cov cov_params covariance": "write numpy.cov of the arrays in fit.draws, the draws of the parameters",
        "samples trace": "write fit.draws, the draws of the parameters",
        "forecast get_forecast get_prediction extrapolate project": f"write {FORECAST}",
        "advise advice recommend decision should_stop": "write scalerl.advise(fit)",
        "backtest cross_val cv validate": "write scalerl.backtest(fit)",
        "compare": "write scalerl.compare(fit, other)",
        "fittedvalues fitted fitted_values y_pred yhat": "write fit.predict(fit.curve.compute).mean",
        "resid residuals": "write fit.curve.metric - fit.predict(fit.curve.compute).mean",
        "ssr rss sse chi2": "write fit.residual_sum_of_squares",
        "rmse mse": "write (fit.residual_sum_of_squares / len(fit.curve)) ** 0.5",
        "rsquared r2 score aic bic loglik llf": (
            "write scalerl.backtest(fit), which scores forecasts of points that were not fitted"
        ),
        "to_frame to_pandas df frame dataframe to_csv": (
            "write pandas.DataFrame(fit.predict(fit.curve.compute)._asdict()), a row for each point"
        ),
        "to_json json as_dict asdict": "write fit.to_dict(), or json.dumps of it",
        "data x y points": "write fit.curve, with its arrays compute and metric",
        "converged success is_identified": "write fit.identified; fit.reason says why",
        "save savefig figure": "write fit.plot().figure.savefig('fit.png')",
        "fit refit": "write scalerl.fit(data) with the data",
    },
    "Forecast": {
        "mean value values prediction predictions yhat predicted levels": (
            "write [level.mean for level in forecast.at], one for each amount of compute"
        ),
        "low high lower upper ci conf_int interval intervals": (
            "write [(level.low, level.high) for level in forecast.at], the 90% intervals"
        ),
        "plot show": "write forecast.fit.plot()",
        "summary describe": "write print(forecast); forecast.to_dict() has the same as JSON values",
        "advice advise": "write scalerl.advise(forecast.fit)",
        "to_frame to_pandas df frame dataframe to_csv": "write pandas.DataFrame(forecast.to_dict()['at'])",
        "to_json json as_dict asdict": "write forecast.to_dict()",
        "ceiling asymptote": "write forecast.fit.asymptote",
        "compute x": "write [level.compute for level in forecast.at]",
    },
    "Comparison": {
        "p p_value pvalue probability prob p_better": (
            "write comparison.measured.probability, that the first is ahead at the compute that both have reached"
        ),
        "better best": "write comparison.winner: 'first', 'second' or None",
        "difference diff lead effect delta": "write comparison.measured.difference",
        "summary describe": "write print(comparison)",
        "plot show": (
            "write first, second = comparison.sides; axes = first[0].plot(); second[0].plot(axes), or "
            "scalerl.report(runs, versus)"
        ),
        "to_frame to_pandas df frame dataframe to_json json": "write comparison.to_dict()",
        "fits": "write comparison.sides",
    },
    "Advice": {
        "decision verdict recommendation advice": "write advice.action",
        "text message reason summary": "write str(advice)",
        "price": "write advice.cost",
        "to_json json to_frame": "write advice.to_dict()",
    },
    "Backtest": {
        "rmse error errors score scores coverage mae": (
            "write [split.forecast.rmse for split in backtest.splits]; `coverage` is there too"
        ),
        "summary describe": "write print(backtest)",
        "results": "write backtest.splits",
        "to_frame to_pandas df frame dataframe to_json json": "write backtest.to_dict()",
        "mean": "write numpy.mean([split.forecast.rmse for split in backtest.splits])",
    },
    "Together": {
        "summary describe": "write print(together)",
        "runs curves": "write together.fits",
        "to_json json to_frame": "write together.to_dict()",
    },
    "Estimate": {
        "value estimate val": "write estimate.mean",
        "std se stderr error": "write estimate.sd",
        "ci interval lower upper conf_int": "write estimate.low and estimate.high, the 90% interval",
    },
}
"""By name of the record: what to write, by the names that are tried, separated by spaces."""
